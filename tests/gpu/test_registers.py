# SPDX-License-Identifier: Apache-2.0
"""registers.py finds what it is there to find, on reports that nobody's compiler wrote."""
import sys

sys.dont_write_bytecode = True
import registers  # noqa: E402

REPORT = """ptxas info    : Compiling entry function '_Zab' for 'sm_90'
ptxas info    : Function properties for _Zab
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 896 bytes cmem[0]
ptxas info    : Compiling entry function '_Zcd' for 'sm_100'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 96 registers, used 1 barriers, 64 bytes smem
"""
found, constants = registers.parse(REPORT)
assert found == {("90", "_Zab"): (40, 16), ("100", "_Zcd"): (96, 0)}, found
assert constants == {"_Zab": 896}, constants

name = "void tersekv::cuda::run_body<tersekv::cuda::StepBody<tersekv::H2O, float> >(int)"
assert registers.short(name) == "StepBody<H2O,float>", registers.short(name)
name = "tersekv::cuda::StepBody<tersekv::H2O, float>"
assert registers.short(name) == "StepBody<H2O,float>", registers.short(name)

table = registers.read_table("# head\n90 40 16 Step<A>\n90 80 0 Attention<B>\n")
assert table == {("90", "Step<A>"): (40, 16), ("90", "Attention<B>"): (80, 0)}, table
assert not list(registers.problems(table, table))
fewer = {("90", "Step<A>"): (30, 0), ("90", "Attention<B>"): (80, 0)}
assert not list(registers.problems(fewer, table))


def complaint(changed):
    return "\n".join(registers.problems(changed, table))


assert "the table allows" in complaint({**table, ("90", "Step<A>"): (41, 16)})
assert "the table allows" in complaint({**table, ("90", "Step<A>"): (40, 20)})
assert "attention spills 4" in complaint({**table, ("90", "Attention<B>"): (70, 4)})
assert "not in the table" in complaint({**table, ("80", "Step<A>"): (1, 0)})
assert "not compiled" in complaint({("90", "Step<A>"): (40, 16)})


def of_arguments(host, kernel):
    return "\n".join(registers.argument_problems(host, kernel))


assert of_arguments({"A": 528, "B": 524}, {"A": 896, "B": 888}) == ""
assert "A: reads 544 bytes of arguments, the host passes 504" in of_arguments({"A": 488}, {"A": 896})
assert "passes 552" in of_arguments({"A": 533}, {"A": 896})
assert "not known" in of_arguments({"A": 528}, {})
assert "not known" in of_arguments({}, {"A": 896})
print("registers.py finds what it should")

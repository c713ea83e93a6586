# SPDX-License-Identifier: Apache-2.0
"""faults.py COMPILER SOURCE_DIR: planted faults in the kernels turn the tests on the host red.

Each fault is a change of one place of a copy of kernels/; the tests named are compiled with it and
must fail, and must pass without any. A barrier's absence is a race: that one runs under the thread
sanitizer. Needs Catch2 where the compiler finds it.
"""
import os
import pathlib
import platform
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

SPLITS, RUNTIME = "test_host_splits.cpp", "test_host_runtime.cpp"
APART = "test_device_policies_apart.cpp"
# name, file under kernels/tersekv/cuda, before, after, the test that must see it, with TSan
FAULTS = [
    ("no fault", None, "", "", SPLITS, False),
    ("no fault, under the thread sanitizer", None, "", "", SPLITS, True),
    ("no fault, offsets", None, "", "", RUNTIME, False),
    ("no fault, policies on a stream of their own", None, "", "", APART, False),
    ("a barrier removed between slabs", "body/attention_args.hpp",
     "context.barrier();  // these values", "// these values", SPLITS, True),
    ("a barrier removed before the softmax (ordinary cores)", "body/attention.hpp",
     "context.barrier();\n    TERSEKV_UNROLL\n    for (int i = 0; i < kMyRows",
     "TERSEKV_UNROLL\n    for (int i = 0; i < kMyRows", SPLITS, True),
    ("a barrier removed before the join (tensor cores)", "body/attention_mma.hpp",
     "context.barrier();\n    const int elements", "const int elements", SPLITS, True),
    ("a stride off by one", "body/attention.hpp",
     "shared.parts + context.warp() * Rows * kTileEntries + e",
     "shared.parts + context.warp() * (Rows * kTileEntries - 1) + e", SPLITS, False),
    ("a swizzle that forgets the row", "body/attention_args.hpp",
     "return 16 * (r * kKeyChunks + (c ^ swizzle(r, kKeyChunks)));",
     "return 16 * (r * kKeyChunks + (c ^ (swizzle(r, kKeyChunks) & 3)) % (kKeyChunks - 1));",
     SPLITS, False),
    ("splits joined in another order", "body/step.hpp",
     "for (int s = 0; s < at_once; ++s) {\n            const float by",
     "for (int s = at_once - 1; s >= 0; --s) {\n            const float by", SPLITS, False),
    ("a split's factor taken for its neighbour's", "body/step.hpp",
     "context.shuffle(factor, first - start + s)", "context.shuffle(factor, (first - start + s) ^ 1)",
     SPLITS, False),
    ("a 32-bit offset", "body/heads.hpp",
     "return logits + (head * rows + row) * group * stride;",
     "return logits + static_cast<std::int32_t>((head * rows + row) * group * stride);",
     RUNTIME, False),
    ("a stage read too early", "body/attention_args.hpp",
     "context.template wait<kStages - 2>();\n      context.barrier();  // these keys",
     "context.template wait<kStages - 1>();\n      context.barrier();  // these keys",
     SPLITS, False),
    ("a call that does not wait for the policy", "basic_kv_cache.hpp",
     "    store().pool().check();\n    workspace_->wait(stream);\n  }",
     "    store().pool().check();\n    static_cast<void>(stream);\n  }", APART, False),
    ("a chunk that does not wait for the policy", "basic_kv_cache.hpp",
     "workspace_->wait(stream);  // the chunk before may be a decode step", "", APART, False),
    ("a policy that does not wait for attention", "memory.hpp",
     "    fork_->begin.hold(*policies_);\n", "", APART, False),
    ("pages given back while others take some", "cache_launches.hpp",
     "policy.keep_pages = true;", "", APART, False),
    ("pages taken again", "body/heads.hpp", "      held[head] = wanted;", "", APART, False),
]


def plant(source, scratch, fault):
    """A copy of kernels/ with the fault in it; returns its include folder."""
    _, file, before, after, _, _ = fault
    kernels = pathlib.Path(scratch, "kernels")
    shutil.copytree(pathlib.Path(source, "kernels"), kernels)
    if file is not None:
        path = kernels / "tersekv" / "cuda" / file
        text = path.read_text(encoding="utf-8")
        if text.count(before) != 1:
            raise SystemExit(f"{file}: '{before}' is there {text.count(before)} times, not once")
        path.write_text(text.replace(before, after), encoding="utf-8")
    return kernels


def is_red(compiler, source, fault):
    _, _, _, _, test, tsan = fault
    with tempfile.TemporaryDirectory() as scratch:
        kernels = plant(source, scratch, fault)
        program = f"{scratch}/program"
        command = [compiler, "-std=c++20", "-Og", f"-I{source}/include", f"-I{kernels}",
                   f"-I{source}/tests", f"{source}/tests/cuda/{test}", "-o", program,
                   *(["-fsanitize=thread"] if tsan else []), "-lCatch2Main", "-lCatch2", "-lpthread"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            raise SystemExit(f"{fault[0]}: does not compile:\n{built.stderr[-3000:]}")
        # The thread sanitizer needs a predictable address space, which some kernels give only asked.
        fixed = ["setarch", platform.machine(), "-R"]
        if subprocess.run([*fixed, "true"], capture_output=True, check=False).returncode != 0:
            fixed = []
        run = subprocess.run([*fixed, program, "--abort"], capture_output=True, text=True, check=False,
                             timeout=300, env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1"})
        return run.returncode != 0


if __name__ == "__main__":
    compiler_used, root = sys.argv[1], str(pathlib.Path(sys.argv[2]).resolve())
    with ThreadPoolExecutor(max_workers=2) as pool:
        red = list(pool.map(lambda f: is_red(compiler_used, root, f), FAULTS))
    wrong = [f[0] for f, seen in zip(FAULTS, red) if seen == (f[1] is None)]
    for fault, seen in zip(FAULTS, red):
        print(f"{fault[0]}: {'red' if seen else 'green'}")
    if wrong:
        sys.exit("not as it should be: " + ", ".join(wrong))

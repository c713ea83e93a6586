# SPDX-License-Identifier: Apache-2.0
"""run.sh's arguments, what it does where stages fail, and pack.sh, all without a GPU."""
import os
import re
import shutil
import sys
import tarfile

from support import FolderTest, GPU, ROOT, main, run

STAGES = ["configure", "build", "tests", "memcheck", "racecheck", "examples", "benchmarks"]


class RunTest(FolderTest):
    def dry(self, *words, **options):
        return run("sh", f"{GPU}/run.sh", "--dry-run", *words, **options)

    def fake_tools(self):
        tools = self.path("tools")
        os.mkdir(tools)
        self.tool("nvidia-smi", "case $* in *compute_cap*) echo 9.0 ;; *name*) echo 'NVIDIA H200' ;;"
                                " *) echo 570.1 ;; esac")
        return tools

    def tool(self, name, script):
        path = self.write(f"tools/{name}", f"#!/bin/sh\n{script}\n")
        os.chmod(path, 0o755)


class Arguments(RunTest):
    def refused(self, *words, why, env=None):
        done = run("sh", f"{GPU}/run.sh", *words, env=env)
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn(why, done.stderr)

    def test_unknown_options_are_refused_with_usage(self):
        for option in ("--fast", "-q", "folder", "--dry-run=yes"):
            self.refused(option, why=f"unknown option '{option}'")
            self.refused("--dry-run", option, why="usage:")

    def test_out_needs_a_folder(self):
        self.refused("--out", why="--out needs a folder")

    def test_bad_settings_are_refused(self):
        self.refused("--dry-run", why="no folder", env={"TERSEKV_DEPS": self.path("none")})
        self.refused("--dry-run", why="expected seconds", env={"TERSEKV_GPU_SECONDS": "soon"})

    def test_help(self):
        done = run("sh", f"{GPU}/run.sh", "--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("--quick", done.stdout)


class DryRun(RunTest):
    def test_says_every_stage_in_order_and_does_nothing(self):
        before = sorted(os.listdir(ROOT))
        done = self.dry("--out", self.path("out"))
        self.assertEqual(done.returncode, 0, done.stderr)
        named = re.findall(r"^(\w+), at most (\d+) s: ", done.stdout, re.M)
        self.assertEqual([name for name, _ in named], STAGES)
        for wanted in ("-DTERSEKV_BUILD_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=", "^gpu\\.",
                       "TERSEKV_NO_SKIP=1", "--tool memcheck", "--tool racecheck", "[small]"):
            self.assertIn(wanted, done.stdout)
        self.assertFalse(os.path.exists(self.path("out")))
        self.assertEqual(sorted(os.listdir(ROOT)), before)

    def test_where_the_results_go(self):
        def stem(*words, **env):
            out = self.dry(*words, env={"OUT": "", **env}).stdout
            return os.path.dirname(re.search(r"^tables: (\S+)\.md from ", out, re.M)[1])
        self.assertEqual(stem(), os.path.join(ROOT, "bench", "results"))
        self.assertEqual(stem(OUT=self.path("o")), self.path("o"))
        self.assertEqual(stem("--out", self.path("p"), OUT=self.path("o")), self.path("p"))
        self.assertEqual(stem(f"--out={self.path('p')}"), self.path("p"))

    def test_quick_is_handed_on(self):
        def line(*words):
            return re.search(r"^benchmarks.*", self.dry(*words).stdout, re.M)[0]
        self.assertTrue(line("--quick").endswith(" --quick"))
        self.assertFalse(line().endswith(" --quick"))

    def test_deps_are_where_cmake_looks(self):
        out = self.dry(env={"TERSEKV_DEPS": self.folder}).stdout
        self.assertIn(f"-DCMAKE_PREFIX_PATH={self.folder}", out)
        self.assertNotIn("CMAKE_PREFIX_PATH", self.dry(env={"TERSEKV_DEPS": ""}).stdout)

    def test_card_at_hand(self):
        tools = self.fake_tools()
        out = self.dry(env={"PATH": f"{tools}:{os.environ['PATH']}"}).stdout
        self.assertIn("-DCMAKE_CUDA_ARCHITECTURES=90 ", out)
        self.assertIn("-gpu-h200.md", out)
        self.assertIn("--driver 570.1 ", out)


class Stages(RunTest):
    """The whole script, in a copy of the tree, with programs that only say what they were given."""

    def setUp(self):
        super().setUp()
        os.makedirs(self.path("tree/bench"))
        shutil.copytree(GPU, self.path("tree/bench/gpu"))
        shutil.copytree(os.path.join(ROOT, "bench", "common"), self.path("tree/bench/common"))
        self.tools = self.fake_tools()
        self.tool("cmake", "exit 0")
        self.tool("ctest", "exit 0")
        self.compiler_of_programs_that_return(0)
        self.tool("compute-sanitizer", "exit 0")
        # measure.py's part: a report without results.
        self.tool("python", f"""case $* in
*measure.py*)
  while [ $# -gt 0 ]; do [ "$1" = --out ] && out=$2; shift; done
  printf '{{"format": 1, "date": "d", "command": "c", "device": {{}}, "versions": {{}}}}' >"$out" ;;
*) exec {sys.executable} "$@" ;;
esac""")

    def compiler_of_programs_that_return(self, status):
        self.tool("nvcc", f"""while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; shift; done
printf '#!/bin/sh\\nexit {status}\\n' >"$out"
chmod +x "$out\"""")

    def whole(self, **env):
        done = run("sh", self.path("tree/bench/gpu/run.sh"), "--out", self.path("out"),
                   env={"PATH": f"{self.tools}:{os.environ['PATH']}", "OUT": "", "CUDACXX": "nvcc",
                        "PYTHON": f"{self.tools}/python", **env})
        tables = [n for n in os.listdir(self.path("out")) if n.endswith(".md")]
        text = ""
        if tables:
            with open(self.path(f"out/{tables[0]}"), encoding="utf-8") as file:
                text = file.read()
        return done, text

    def test_all_pass(self):
        done, text = self.whole()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for stage in STAGES:
            self.assertIn(f"| {stage} | ok |", text)
        self.assertRegex(done.stdout, r"-gpu-h200\.md\n$")

    def test_an_example_that_fails_is_a_failed_stage(self):
        self.compiler_of_programs_that_return(3)
        done, text = self.whole()
        self.assertEqual(done.returncode, 1)
        self.assertIn("| examples | FAILED(3) |", text)
        self.assertIn("| benchmarks | ok |", text)

    def test_a_failed_stage_is_named_and_the_next_go_on(self):
        self.tool("ctest", "echo a test failed; exit 8")
        done, text = self.whole()
        self.assertEqual(done.returncode, 1)
        self.assertIn("a test failed", done.stdout)
        self.assertIn("1 stages failed", done.stdout)
        self.assertIn("| tests | FAILED(8) |", text)
        self.assertIn("| benchmarks | ok |", text)

    def test_logs_of_failures_are_beside_the_results(self):
        self.tool("ctest", "echo a test failed; exit 8")
        self.whole()
        with tarfile.open(self.path("out/" + self.logs()[0])) as logs:
            self.assertEqual(logs.extractfile("./tests.log").read(), b"a test failed\n")
            self.assertIn("stages.txt", logs.getnames())
        os.remove(self.path("out/" + self.logs()[0]))
        self.tool("ctest", "exit 0")
        self.whole()
        self.assertEqual(self.logs(), [])

    def logs(self):
        return [n for n in os.listdir(self.path("out")) if n.endswith("-logs.tgz")]

    def test_benchmarks_go_on_where_tests_cannot_be_built(self):
        self.tool("cmake", "echo \"$@\" >>$0.log; case $* in *TESTS=ON*) exit 1 ;; esac")
        done, text = self.whole()
        self.assertIn("1 stages failed", done.stdout)
        for stage in ("benchmarks-only", "build", "benchmarks"):
            self.assertIn(f"| {stage} | ok |", text)
        with open(self.path("tools/cmake.log"), encoding="utf-8") as file:
            build = file.read().splitlines()[-1]
        self.assertIn("--target tersekv_gpu_bench -j", build)

    def test_every_stage_counts(self):
        for tool, failed in (("cmake", 3), ("ctest", 1), ("compute-sanitizer", 2)):
            with self.subTest(tool):
                self.tool(tool, "exit 3")
                done, _ = self.whole()
                self.tool(tool, "exit 0")
                self.assertEqual(done.returncode, 1)
                self.assertIn(f"{failed} stages failed", done.stdout)

    def test_a_stage_that_hangs_is_stopped(self):
        self.tool("ctest", "sleep 60")
        done, text = self.whole(TERSEKV_GPU_SECONDS="207")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(text, r"\| tests \| TIMED-OUT\(\d\) \|")
        self.assertIn("| benchmarks | ok |", text)

    def test_no_report_is_a_failure(self):
        self.tool("python", "exit 1")
        done, text = self.whole()
        self.assertEqual(done.returncode, 1)
        self.assertEqual(text, "")
        self.assertIn("benchmarks FAILED(1)", done.stdout)
        self.assertIn("tables FAILED", done.stdout)

    def test_no_card(self):
        self.tool("nvidia-smi", "exit 9")
        done = run("sh", self.path("tree/bench/gpu/run.sh"),
                   env={"PATH": f"{self.tools}:{os.environ['PATH']}"})
        self.assertEqual(done.returncode, 1)
        self.assertIn("shows no GPU", done.stderr)


class Pack(FolderTest):
    def test_wrong_arguments(self):
        for words in ((), ("",), ("-x",), ("a", "b")):
            done = run("sh", f"{GPU}/pack.sh", *words, cwd=self.folder)
            self.assertEqual(done.returncode, 2)
            self.assertIn("usage:", done.stderr)
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_project_finds_all_it_needs_in_the_folder(self):
        deps = self.path("deps")
        packed = run("sh", f"{GPU}/pack.sh", deps)
        if packed.returncode == 1 and "is not installed" in packed.stderr:
            self.skipTest(packed.stderr.strip())
        self.assertEqual(packed.returncode, 0, packed.stderr)
        self.write("CMakeLists.txt", """
cmake_minimum_required(VERSION 3.25)
project(finds NONE)
find_package(Catch2 3 REQUIRED)
find_package(nlohmann_json REQUIRED)
include(Catch)
foreach(target Catch2::Catch2 nlohmann_json::nlohmann_json)
  get_target_property(include ${target} INTERFACE_INCLUDE_DIRECTORIES)
  message(STATUS "found ${include}")
endforeach()
""")
        done = run("cmake", "-S", self.folder, "-B", self.path("b"), f"-DCMAKE_PREFIX_PATH={deps}",
                   "-DCMAKE_FIND_USE_CMAKE_SYSTEM_PATH=OFF", "-DCMAKE_SIZEOF_VOID_P=8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count(f"found {deps}/include"), 2, done.stdout)
        for header in ("catch2/catch_all.hpp", "nlohmann/json.hpp"):
            self.assertTrue(os.path.exists(f"{deps}/include/{header}"), header)
        size = sum(os.path.getsize(os.path.join(folder, name))
                   for folder, _, names in os.walk(deps) for name in names)
        self.assertLess(size, 32 << 20)  # it has to travel

    def test_nothing_to_pack(self):
        done = run("sh", "-c", "sed 's| /usr/local /usr;|;|' \"$1\" | sh -s \"$2\"", "x",
                   f"{GPU}/pack.sh", self.path("deps"), env={"CMAKE_PREFIX_PATH": self.folder})
        self.assertEqual(done.returncode, 1)
        self.assertIn("is not installed", done.stderr)


if __name__ == "__main__":
    main()

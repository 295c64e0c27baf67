"""python tests/peers/run.py [NAME...]: runs the checks of NAME_check.py, by default of all, each file as a process of its own, in queues
beside each other: types, the server's, and the others. None keeps two cores busy. What it prints at the end: the tables, what failed and
what was skipped, and "N passed, N failed[, N skipped]". Exit status 1: something failed."""
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).parent
LIMIT = 900  # seconds of a file: the longest takes 300 on two cores
ORDER = ["tokens", "tiktoken", "templates", "models", "folders", "adapter_llama", "adapter_peft", "training", "preference", "distill", "grpo", "own_model",
         "memory", "edit", "server", "responses", "evaluation", "clients", "openapi", "misshapen", "faults", "dashboard", "types"]

APART = [{"types"}, {"server", "responses", "evaluation", "clients", "openapi", "misshapen", "faults", "dashboard"}]

lines = []


def run(name, environment, log):
    begin, own = time.time(), []

    def tell(line):
        own.append(line)
        lines.append(line)
        print(line, flush=True)

    command = ["timeout", str(LIMIT), sys.executable, str(HERE / f"{name}_check.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, env=environment, text=True) as child:
        for line in child.stdout:
            tell(line.rstrip("\n"))
    if child.returncode == 124:
        tell(f"FAILED {name}: not done after {LIMIT} s")
    elif child.returncode:
        tell(f"FAILED {name}: ended with status {child.returncode}")
    elif not any(line.startswith(("passed ", "FAILED ", "SKIPPED ")) for line in own):
        tell(f"FAILED {name}: checked nothing")
    print(f"{name}: {time.time() - begin:.0f} s", flush=True)


def main(names):
    known = sorted(path.name[:-len("_check.py")] for path in HERE.glob("*_check.py"))
    if sorted(ORDER) != known:
        sys.exit(f"run.py: ORDER has {sorted(ORDER)}, the folder {known}")
    unknown = [name for name in names if name not in ORDER]
    if unknown:
        sys.exit(f"run.py: there is no {unknown[0]}; there are {', '.join(ORDER)}")
    with tempfile.TemporaryDirectory(prefix="qeng-peers-") as work, tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log:
        environment = {
            "OMP_WAIT_POLICY": "PASSIVE",  # threads of the peers that spin for each other take four times as long on a busy machine
            **os.environ, "TORCH_USE_RTLD_GLOBAL": "1", "TQDM_DISABLE": "1"}
        wanted = [each for each in ORDER if not names or each in names]

        def run_all(some, folder):
            os.mkdir(folder)
            for name in some:
                run(name, {**environment, "QENG_PEERS_WORK": folder}, log)

        with concurrent.futures.ThreadPoolExecutor() as pool:
            queues = [[each for each in wanted if each in group] for group in [set(ORDER) - set().union(*APART), *APART]]
            for done in [pool.submit(run_all, some, os.path.join(work, str(i))) for i, some in enumerate(queues)]:
                done.result()
        failed = [line for line in lines if line.startswith("FAILED ")]
        if failed:
            log.seek(0)
            print("\nThe last words of the checks on standard error:\n" + log.read()[-8000:])
    passed, skipped = (sum(line.startswith(word) for line in lines) for word in ("passed ", "SKIPPED "))
    print()
    for line in lines:
        if not line.startswith("passed "):
            print(line)
    print(f"{passed} passed, {len(failed)} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return 1 if failed or not passed else 0


sys.exit(main(sys.argv[1:]))

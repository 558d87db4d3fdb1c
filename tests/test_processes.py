"""Two processes on one machine, two CPU devices each: the numbers of one process, and what follows the end of one."""

import socket
import time

from commands import ended, start, start_two, until

from jaxtie.processes import GONE, Processes
from jaxtie.results import RunFolder

OPTIONS = ["--seeds", "70", "--steps", "2000", "--arms", "untied", "--checkpoint-every", "1"]


def test_two_processes_give_the_bits_of_one_also_after_losing_either(tmp_path):
    assert ended(start(tmp_path / "one", *OPTIONS))[0] == 0
    for victim in (1, 0):
        processes = start_two(tmp_path / "two", *OPTIONS, JAX_NUM_CPU_DEVICES="2")
        until(processes[0], "compiling")
        time.sleep(2)
        began = time.monotonic()
        processes[victim].kill()
        status, error = ended(processes[1 - victim])
        assert time.monotonic() - began < 30
        assert status in (2, -9)
        assert [line for line in error.splitlines() if line.startswith("jaxtie: ")] == [f"jaxtie: {GONE}"]
        assert "Traceback" not in error and "stack trace" not in error
        ended(processes[victim])
    processes = start_two(tmp_path / "two", *OPTIONS, JAX_NUM_CPU_DEVICES="2")
    assert [ended(process)[0] for process in processes] == [0, 0]
    one, two = (RunFolder(tmp_path / name).load().drop_attrs() for name in ("one", "two"))
    assert one.identical(two)


def test_shares_are_whole_blocks_and_make_up_all_seeds():
    seeds = tuple(range(100, 170))
    shares = [Processes(i, 3).share(seeds, 32) for i in range(3)]
    assert [len(share) for share in shares] == [32, 32, 6]
    assert sorted(sum(shares, ())) == list(seeds)
    assert Processes(3, 4).share(seeds, 32) == ()


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with socket.create_server(("", 0)) as taken:
        place = ["--coordinator", f"127.0.0.1:{taken.getsockname()[1]}", "--process-count", "2", "--process-index", "0"]
        status, error = ended(start(tmp_path / "run", *OPTIONS, "--distributed", *place))
    assert status == 2
    assert [line[:23] for line in error.splitlines()] == ["jaxtie: --distributed: "], error
    assert not (tmp_path / "run").exists()

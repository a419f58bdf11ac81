"""A model on several processes: same text, sessions of any number of ranks, and ends of any kind."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from hf_folders import write_model
from lora_files import random_pairs, write_peft
from sporelm import LLM, Completion, SamplingParams, pipeline
from sporelm.api import Conversation, rank_launch
from sporelm.api.rank_folder import FOLDER_PREFIX, RankFolder
from sporelm.engine.ranks import transport
from sporelm.engine.ranks.worker_group import WorkerGroup
from sporelm.errors import ModelFileError, RequestError, SporeError
from system.processes import command, environment, list_ranks
from tiny_models import WIDE

if sys.platform == "win32":
    pytest.skip("signals that stop a process", allow_module_level=True)

PROMPTS = ["Once upon a time", "The dog", "Lily and Tom were playing in the park. They"]
GREEDY = SamplingParams(max_tokens=40, temperature=0.0)
DRAWN = SamplingParams(max_tokens=40, temperature=0.8, top_k=20, seed=3)
PARAMS = [GREEDY, GREEDY, DRAWN]
LONG = [SamplingParams(max_tokens=230, temperature=0.0)] * 2 + [
    SamplingParams(max_tokens=230, temperature=0.8, top_k=20, seed=3)
]
MEMORY = Path("/dev/shm")


def texts(completions: list[Completion]) -> list[tuple[str, str]]:
    return [(each.text, each.finish_reason) for each in completions]


@pytest.fixture(scope="module")
def single(story: Path) -> Iterator[LLM]:
    with LLM(story, threads=1) as llm:
        yield llm


def shared_files(process: int = 0) -> set[str]:
    """The folders of shared memory that a process has made, this one by default."""
    pattern = f"{FOLDER_PREFIX}{process or os.getpid()}-*"
    return {path.name for path in MEMORY.glob(pattern)} if MEMORY.is_dir() else set()


@pytest.fixture(autouse=True)
def no_leak() -> Iterator[None]:
    """Check that no process, file, thread or file descriptor stays behind."""
    gc.collect()
    before, threads = descriptors(), threading.active_count()
    yield
    gc.collect()
    assert list_ranks() == []
    assert shared_files() == set()
    deadline = monotonic() + 3
    while (threading.active_count() > threads or len(descriptors()) > len(before)) and monotonic() < deadline:
        sleep(0.05)
    assert threading.active_count() <= threads, threading.enumerate()
    assert len(descriptors()) <= len(before), sorted(descriptors().items())


def descriptors() -> dict[str, str]:
    found = {}
    for path in Path("/proc/self/fd").glob("*") if Path("/proc/self/fd").is_dir() else ():
        with suppress(OSError):
            found[path.name] = os.readlink(path)
    return found


def group_of(llm: LLM) -> WorkerGroup:
    group = llm.loaded_engine.worker
    assert isinstance(group, WorkerGroup)
    return group


@pytest.mark.parametrize(
    "options",
    [{"tp": 2}, {"pp": 2, "pp_layers": [1, 1]}, {"tp": 3, "tp_shares": [1, 1, 2]}, {"tp": 2, "pp": 2}],
    ids=str,
)
@pytest.mark.parametrize("executor", ["threads", pytest.param("processes", marks=pytest.mark.all)])
def test_ranks_equal_one(story: Path, single: LLM, options: dict, executor: str) -> None:
    ids = single.prompt_ids(PROMPTS[0]) * 20  # more than a page
    with LLM(story, rank_executor=executor, threads=2, **options) as llm:
        assert texts(llm.generate(PROMPTS, PARAMS)) == texts(single.generate(PROMPTS, PARAMS))
        np.testing.assert_allclose(llm.logits(ids), single.logits(ids), rtol=0, atol=1e-4)
        np.testing.assert_allclose(llm.embed(PROMPTS), single.embed(PROMPTS), rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", [{"tp": 2}, {"tp": 2, "pp": 2}], ids=str)
def test_processes_equal_one(story: Path, single: LLM, options: dict) -> None:
    with LLM(story, threads=2, **options) as llm:
        assert len(list_ranks()) == group_of(llm).size - 1
        if sys.platform == "linux":
            maps = Path(f"/proc/{list_ranks()[0]}/maps").read_text()
            assert str(story.resolve()) not in maps, "the weights were copied"
        assert texts(llm.generate(PROMPTS, PARAMS)) == texts(single.generate(PROMPTS, PARAMS))


@pytest.mark.skipif(sys.platform != "linux", reason="threads are pinned on Linux")
def test_threads_of_all_ranks_are_pinned(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    monkeypatch.setattr(rank_launch, "assign_cores", lambda *_: [cores[:1], cores[1:2]])
    before = set(threading.enumerate())
    with LLM(story, tp=2, threads=4):
        pool = [each for each in set(threading.enumerate()) - before if each.name.startswith("sporelm-")]
        assert [os.sched_getaffinity(thread.native_id or 0) for thread in pool] == [{cores[0]}]
        tasks = [int(path.name) for path in Path(f"/proc/{list_ranks()[0]}/task").iterdir()]
        assert {cores[1]} in map(os.sched_getaffinity, tasks)
    assert sorted(os.sched_getaffinity(0)) == cores


@pytest.mark.parametrize("options", [{"tp": 2}, {"pp": 2}], ids=str)
@pytest.mark.parametrize("devices", [("torch", "cpu"), ("cpu", "torch")], ids=",".join)
def test_ranks_on_different_devices_equal_one(
    story: Path, single: LLM, options: dict, devices: tuple[str, str]
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    with LLM(story, rank_executor="threads", threads=2, rank_devices=devices, **options) as llm:
        assert texts(llm.generate(PROMPTS, PARAMS)) == texts(single.generate(PROMPTS, PARAMS))


def test_micro_batches_equal_whole_steps(story: Path, single: LLM) -> None:
    with LLM(story, rank_executor="threads", threads=2, pp=2, micro_batches=3) as llm:
        assert texts(llm.generate(PROMPTS, PARAMS)) == texts(single.generate(PROMPTS, PARAMS))


def test_the_pipeline_has_ranks(story: Path, single: LLM) -> None:
    with pipeline(story, tp=2, rank_executor="threads", threads=2) as pipe:
        found = pipe(PROMPTS[:1], request_output_len=20, do_preprocess=False, temperature=0.0)
    assert found[0].text == single.generate(PROMPTS[0], SamplingParams(max_tokens=20, temperature=0.0))[0].text


@pytest.mark.parametrize(("saved", "restored"), [(2, 1), (1, 3), (3, 2)])
def test_sessions_go_from_any_number_of_ranks_to_any_other(
    talker: Path, tmp_path: Path, saved: int, restored: int
) -> None:
    path = tmp_path / "session"
    with LLM(talker, threads=2, tp=saved, rank_executor="threads") as llm:
        talk = llm.conversation("A story. " * 40)
        answer(talk, "Hello")
        talk.save(path)
        expected = answer(talk, "And then?")
    with LLM(talker, threads=2, tp=restored, rank_executor="threads") as llm:
        found = answer(llm.wake(path), "And then?")
        assert found.text == expected.text
        assert found.cached_tokens > 64


@pytest.mark.parametrize("options", [{"tp": 2}, {"pp": 2}], ids=str)
def test_sessions_of_processes_are_saved_and_restored(talker: Path, tmp_path: Path, options: dict) -> None:
    path = tmp_path / "session"
    with LLM(talker, threads=2, **options) as llm:
        talk = llm.conversation("A story. " * 40)
        answer(talk, "Hello")
        talk.save(path)
        expected = answer(talk, "And then?")
    with LLM(talker, threads=2) as llm:
        found = answer(llm.wake(path), "And then?")
        assert found.text == expected.text
        assert found.cached_tokens > 64


def answer(talk: Conversation, text: str) -> Completion:
    """Ask, and return the whole answer."""
    *_, last = talk.ask(text, SamplingParams(max_tokens=12, temperature=0.0))
    assert last.completion is not None
    return last.completion


def kill_soon(number: int, delay: float = 0.15) -> threading.Timer:
    """Send a signal to the last rank's process while it computes."""
    timer = threading.Timer(delay, lambda: os.kill(list_ranks()[-1], number))
    timer.start()
    return timer


def test_a_killed_worker_is_replaced(story: Path, single: LLM, caplog: pytest.LogCaptureFixture) -> None:
    expected = texts(single.generate(PROMPTS, LONG))
    with LLM(story, tp=2, threads=2) as llm:
        began = monotonic()
        timer = kill_soon(signal.SIGKILL, 0.03)
        found = texts(llm.generate(PROMPTS, LONG))
        timer.join()
        assert found == expected
        assert texts(llm.generate(PROMPTS, LONG)) == expected  # the loss may be noticed here
        assert group_of(llm).num_restarts == 1
        assert "rank 1: its process has ended (signal 9, SIGKILL)" in caplog.text
        assert monotonic() - began < 15
        llm.engine.check_integrity()


@pytest.mark.all
def test_twenty_killed_workers_are_replaced(story: Path, single: LLM) -> None:
    expected = texts(single.generate(PROMPTS, LONG))
    with LLM(story, tp=4, threads=2) as llm:
        for number in range(20):
            timer = kill_soon(signal.SIGKILL, 0.02 + 0.01 * number)
            began = monotonic()
            found = texts(llm.generate(PROMPTS, LONG))
            timer.join()
            assert found == expected
            assert monotonic() - began < 15
            llm.generate(PROMPTS[0], GREEDY)  # the loss is noticed here at last
            assert len(list_ranks()) == 3
        assert group_of(llm).num_restarts == 20
        llm.engine.check_integrity()


@pytest.mark.all
def test_a_stopped_worker_is_replaced(story: Path, single: LLM) -> None:
    expected = texts(single.generate(PROMPTS, LONG))
    with LLM(story, tp=2, threads=2) as llm:
        stopped = list_ranks()
        os.kill(stopped[0], signal.SIGSTOP)
        began = monotonic()
        while group_of(llm).lost is None:
            assert monotonic() - began < 5
            sleep(0.01)
        assert texts(llm.generate(PROMPTS, LONG)) == expected
        assert monotonic() - began < 15
        assert list_ranks() != stopped


@pytest.mark.all
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=str)
def test_a_lost_worker_of_a_later_stage_is_replaced(
    story: Path, single: LLM, number: int, caplog: pytest.LogCaptureFixture
) -> None:
    expected = texts(single.generate(PROMPTS, LONG))
    with LLM(story, tp=2, pp=2, threads=2) as llm:
        began = monotonic()
        timer = kill_soon(number)
        assert texts(llm.generate(PROMPTS, LONG)) == expected
        timer.join()
        assert texts(llm.generate(PROMPTS, LONG)) == expected  # the loss may be noticed here
        assert group_of(llm).num_restarts == 1
        assert monotonic() - began < 15
        assert len(list_ranks()) == 3
        assert any(each.getMessage().startswith("ranks: rank 3: ") for each in caplog.records)


@pytest.mark.parametrize("executor", ["threads", pytest.param("processes", marks=pytest.mark.all)])
def test_adapters_are_on_all_ranks_also_after_a_restart(tmp_path: Path, executor: str) -> None:
    model = write_model(tmp_path / "tiny", WIDE)
    paths = [write_peft(tmp_path / name, random_pairs(WIDE, 2, seed=seed), 4.0) for seed, name in enumerate("ab")]
    ids = [1, 9, 17, 33, 5, 99, 42] * 10
    with LLM(model, threads=1, adapters=paths) as llm:
        expected = [llm.logits(ids, name) for name in ("a", "b", "")]
    with LLM(model, threads=2, tp=2, rank_executor=executor, adapters=paths[:1]) as llm:
        llm.load_adapter(paths[1])
        for _ in range(2):
            for name, logits in zip(("a", "b", ""), expected, strict=True):
                np.testing.assert_allclose(llm.logits(ids, name), logits, rtol=0, atol=1e-4)
            group_of(llm).restart()
            llm.engine.scheduler.recompute_all()
        llm.unload_adapter("a")
        llm.unload_adapter("b")


def test_workers_end_with_their_parent(story: Path) -> None:
    code = f"from sporelm import LLM; llm = LLM({str(story)!r}, tp=3, threads=2); print('ready', flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"ready\n"
    workers = list_ranks(process.pid)
    assert len(workers) == 2
    process.kill()
    process.wait()
    deadline = monotonic() + 10
    while any(is_running(worker) for worker in workers):
        assert monotonic() < deadline
        sleep(0.05)
    process.stdin.close()
    process.stdout.close()
    for name in shared_files(process.pid):  # only the folder of a killed process may stay, and it is empty
        assert list((MEMORY / name).iterdir()) == []
    RankFolder.create(MEMORY).close()
    assert shared_files(process.pid) == set()


def is_running(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def test_another_file_is_refused(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options_of = rank_launch.RankLauncher._options_of

    def other_identity(self: rank_launch.RankLauncher, number: int, folder: Path | None = None) -> object:
        options = options_of(self, number, folder)
        return rank_launch.msgspec.structs.replace(options, identity="0" * 64) if number else options

    monkeypatch.setattr(rank_launch.RankLauncher, "_options_of", other_identity)
    with pytest.raises(ModelFileError, match=r"rank 1: .*not the model of rank 0"):
        LLM(story, tp=2, threads=2)


def test_a_worker_that_cannot_start_is_reported(story: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_launch, "_START", "raise SystemExit(9)")
    with pytest.raises(SporeError, match=r"rank 1: its process has ended at its start \(exit code 9\)"):
        LLM(story, tp=2, threads=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 0}, "tp"),
        ({"tp": 2, "tp_shares": [1]}, "tp_shares"),
        ({"pp": 3}, "pp"),
        ({"pp": 2, "pp_layers": [1, 5]}, "pp_layers"),
        ({"tp": 2, "rank_executor": "magic"}, "rank_executor"),
        ({"tp": 2, "remote_ranks": 2}, "remote_ranks"),
        ({"tp": 2, "remote_ranks": 1}, "rank_listen"),
        ({"tp": 2, "rank_listen": "127.0.0.1:1"}, "remote_ranks"),
        ({"tp": 2, "remote_ranks": 1, "rank_listen": "0.0.0.0:1", "rank_token_file": "{}/token"}, "all interfaces"),
        ({"tp": 2, "remote_ranks": 1, "rank_listen": "8.8.8.8:1", "rank_token_file": "{}/token"}, "public"),
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused(story: Path, tmp_path: Path, options: dict, message: str) -> None:
    if "rank_token_file" in options:
        options = options | {"rank_token_file": options["rank_token_file"].format(tmp_path)}
    with pytest.raises(RequestError, match=message):
        LLM(story, threads=2, **options)
    assert list(tmp_path.iterdir()) == []


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_a_worker_joins_with_the_token_only(story: Path, single: LLM, tmp_path: Path) -> None:
    token, wrong, port = tmp_path / "token", tmp_path / "wrong", free_port()
    transport.read_or_create_token(token)
    transport.read_or_create_token(wrong)
    join = ["worker", "--join", f"127.0.0.1:{port}", "--wait-seconds"]
    errors = [tmp_path / "errors0", tmp_path / "errors1"]
    workers = []
    for seconds, file, error in ((4, wrong, errors[0]), (8, token, errors[1])):
        with error.open("w") as stderr:
            words = command(*join, seconds, "--token-file", file, story)
            workers.append(subprocess.Popen(words, env=environment(), stderr=stderr))
    options = {"tp": 3, "remote_ranks": 1, "rank_listen": f"127.0.0.1:{port}", "rank_token_file": token, "threads": 2}
    with LLM(story, **options) as llm:
        assert texts(llm.generate(PROMPTS, PARAMS)) == texts(single.generate(PROMPTS, PARAMS))
        os.kill(list_ranks()[-1], signal.SIGKILL)  # the other rank: this worker joins again
        assert texts(llm.generate(PROMPTS, LONG)) == texts(single.generate(PROMPTS, LONG))
        assert texts(llm.generate(PROMPTS, LONG)) == texts(single.generate(PROMPTS, LONG))
        assert group_of(llm).num_restarts == 1
    assert [worker.wait(30) for worker in workers] == [1, 0]
    assert "refused this token" in errors[0].read_text() or "cannot connect" in errors[0].read_text()
    assert errors[1].read_text().count("joined") == 2


@pytest.mark.all
def test_a_spare_worker_takes_the_place_of_a_lost_one(story: Path, single: LLM, tmp_path: Path) -> None:
    token, address = tmp_path / "token", f"127.0.0.1:{free_port()}"
    transport.read_or_create_token(token)
    words = command("worker", "--join", address, "--token-file", token, "--wait-seconds", 8)
    errors, workers = [tmp_path / "errors0", tmp_path / "errors1"], list[subprocess.Popen[bytes]]()

    def start() -> None:
        with errors[len(workers)].open("w") as stderr:
            workers.append(subprocess.Popen(words, env=environment(), stderr=stderr))

    start()
    with LLM(story, tp=2, remote_ranks=1, rank_listen=address, rank_token_file=token, threads=1) as llm:
        assert texts(llm.generate(PROMPTS, PARAMS)) == texts(single.generate(PROMPTS, PARAMS))
        start()
        deadline = monotonic() + 30
        while "this worker waits" not in errors[1].read_text():
            assert monotonic() < deadline, errors[1].read_text()
            sleep(0.05)
        workers[0].kill()
        began = monotonic()
        assert texts(llm.generate(PROMPTS, LONG)) == texts(single.generate(PROMPTS, LONG))
        assert monotonic() - began < 15
        workers[0].wait()
    assert workers[1].wait(30) == 0
    assert "has ended this rank" in errors[1].read_text()


def private_address() -> str:
    """An address of this machine that is neither loopback nor public; skips where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with suppress(OSError):
            probe.connect(("10.255.255.255", 1))  # sends nothing
        host = str(probe.getsockname()[0])
    if ip_address(host).is_loopback or ip_address(host).is_unspecified or not ip_address(host).is_private:
        pytest.skip("no private address here")
    return host


@pytest.mark.all
@pytest.mark.parametrize("division", [{"tp": 3}, {"pp": 2}], ids=str)
def test_hosts_exchange_values_over_gloo(story: Path, single: LLM, tmp_path: Path, division: dict) -> None:
    pytest.importorskip("torch")
    host, port, token = private_address(), free_port(), tmp_path / "token"
    transport.read_or_create_token(token)
    words = command("worker", "--join", f"{host}:{port}", "--token-file", token, "--wait-seconds", 10)
    with (tmp_path / "errors").open("w") as stderr:
        worker = subprocess.Popen(words, env=environment(), stderr=stderr)
    options = {"remote_ranks": 1, "rank_listen": f"{host}:{port}", "rank_token_file": token, "threads": 2}
    with LLM(story, **division, **options) as llm:
        assert texts(llm.generate(PROMPTS, PARAMS)) == texts(single.generate(PROMPTS, PARAMS))
        if "tp" in division:
            timer = kill_soon(signal.SIGKILL)
            found = llm.generate(PROMPTS, LONG)
            assert texts(found) == texts(single.generate(PROMPTS, LONG)), [each.error for each in found]
            timer.join()
            assert texts(llm.generate(PROMPTS, PARAMS)) == texts(single.generate(PROMPTS, PARAMS))
            assert group_of(llm).num_restarts == 1
    assert worker.wait(30) == 0, (tmp_path / "errors").read_text()


def test_the_command_line_has_ranks(spore, story: Path) -> None:  # type: ignore[no-untyped-def]
    words = ["run", story, "-p", PROMPTS[0], "-n", 8, "--temp", 0, "--threads", 2]
    one, two = spore(*words), spore(*words, "--tp", 2)
    assert two.returncode == 0, two.stderr
    assert two.stdout == one.stdout
    assert spore(*words, "--tp", 2, "--tp-shares", "1").returncode == 2

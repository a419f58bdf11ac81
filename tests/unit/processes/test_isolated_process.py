"""Work in a process that is killed when it exceeds its budget."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path

import pytest

from sporelm.errors import BackendError, ModelFileError, QueueFull, RequestError
from sporelm.processes import isolated_process
from sporelm.processes.isolated_process import (
    BinaryResult,
    IsolatedProcess,
    OverBudget,
    ProcessDied,
    ProcessLimits,
    SharedResource,
)
from sporelm.text import ChatTemplate
from sporelm.text.chat_templates import chat_template
from sporelm.text.chat_templates.chat_template import NeedsIsolation, TemplateStopped, without_waiting
from sporelm.text.chat_templates.marked_text import MarkedText

NESTED = "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"
PLAIN = "{% for m in messages %}{{ '<' ~ m.role ~ '>' }}{{ m.content }}{% endfor %}"
TEMPLATE_JOB = "sporelm.text.isolated_jobs:load_template"
USER = [{"role": "user", "content": "Hi"}]
TEMPLATE = SharedResource(-1, TEMPLATE_JOB, lambda: (PLAIN, {}, "a template"))
CHAT = (USER, [], True, {})


@pytest.fixture
def process() -> Iterator[IsolatedProcess]:
    child = IsolatedProcess("test")
    yield child
    child.close()
    assert child.pid is None
    assert "test" not in {thread.name for thread in threading.enumerate()}


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_job_gives_what_it_gives_here(process: IsolatedProcess) -> None:
    spans, stopped, used = process.run(TEMPLATE, (1.0, *CHAT), 5.0)
    assert [tuple(span) for span in spans] == [("<user>", True), ("Hi", False)]
    assert stopped == ""
    assert 0 < used < 1
    pid = process.pid
    assert process.run(TEMPLATE, (1.0, *CHAT), 5.0)[0] == spans
    assert process.pid == pid, "one process for all jobs"


def load_repeater() -> Callable[..., BinaryResult]:
    """Load a job that returns bytes in parts."""
    return lambda data, count: BinaryResult({"count": count}, [data] * count)


def test_bytes_come_back_as_they_are(process: IsolatedProcess) -> None:
    process.limits = ProcessLimits(max_result_bytes=3 << 20)
    repeater = SharedResource(-40, f"{__name__}:load_repeater", lambda: ())
    data = bytes(range(256)) * 4096
    result = process.run(repeater, (data, 3), 5.0)
    assert result.value == {"count": 3}
    assert bytes(result.parts[0]) == data * 3
    with pytest.raises(ProcessDied):  # more than the owner accepts
        process.run(repeater, (data, 4), 5.0)
    assert bytes(process.run(repeater, (b"ab", 2), 5.0).parts[0]) == b"abab"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a job")
def test_a_job_gets_the_memory_of_its_limits(process: IsolatedProcess) -> None:
    repeater = SharedResource(-41, f"{__name__}:load_repeater", lambda: ())
    allocator = SharedResource(-42, f"{__name__}:load_allocator", lambda: ())
    process.run(repeater, (b"", 0), 5.0)
    process.limits = ProcessLimits(job_memory_bytes=64 << 20)
    with pytest.raises(RequestError, match="more memory is needed"):
        process.run(allocator, (128 << 20,), 5.0)
    process.limits = ProcessLimits(job_memory_bytes=256 << 20)
    assert process.run(allocator, (128 << 20,), 5.0) == 128 << 20


def load_allocator() -> Callable[..., int]:
    """Load a job that allocates bytes."""
    return lambda count: len(bytearray(count))


def test_any_text_comes_back_as_it_is(process: IsolatedProcess) -> None:
    content = "\ud800 \x00 é 😶\u200d🌫️ \n" * 1000
    spans, *_ = process.run(TEMPLATE, (1.0, [{"role": "user", "content": content}], [], True, {"n": 1 << 80}), 5.0)
    assert spans[1][0] == content


def test_a_job_over_its_time_is_killed_and_the_next_one_runs(process: IsolatedProcess) -> None:
    endless = SharedResource(-2, TEMPLATE_JOB, lambda: (NESTED, {}, "a template"))
    process.run(TEMPLATE, (1.0, *CHAT), 5.0)
    pid = process.pid
    assert pid is not None
    began = time.monotonic()
    with pytest.raises(OverBudget):
        process.run(endless, (60.0, *CHAT), 0.1)
    assert time.monotonic() - began < 30
    assert not is_running(pid)
    assert process.run(TEMPLATE, (1.0, *CHAT), 5.0)[0][1] == ["Hi", False]
    assert process.pid != pid


def test_a_process_that_dies_fails_its_job_alone(process: IsolatedProcess) -> None:
    process.run(TEMPLATE, (1.0, *CHAT), 5.0)
    endless = SharedResource(-3, TEMPLATE_JOB, lambda: (NESTED, {}, "a template"))
    running = process.submit(endless, (60.0, *CHAT), 60.0)
    while not running.running():
        time.sleep(0.005)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGTERM)
    with pytest.raises(ProcessDied):
        running.result(30)
    assert process.run(TEMPLATE, (1.0, *CHAT), 5.0)[0][1] == ["Hi", False]


def test_a_job_that_stalls_is_over_its_budget(process: IsolatedProcess) -> None:
    """The end of the child's output must not be seen before the reason for it is known."""
    endless = SharedResource(-30, TEMPLATE_JOB, lambda: (NESTED, {}, "a template"))
    process.run(TEMPLATE, (1.0, *CHAT), 5.0)
    process.limits = ProcessLimits(stall_seconds=0.1)
    for _ in range(3):
        with pytest.raises(OverBudget):
            process.run(endless, (60.0, *CHAT), 60.0)


@pytest.mark.skipif(not hasattr(signal, "SIGXCPU"), reason="a signal of POSIX")
def test_a_limit_of_the_shell_is_one_of_time(process: IsolatedProcess) -> None:
    process.run(TEMPLATE, (1.0, *CHAT), 5.0)
    running = process.submit(SharedResource(-31, TEMPLATE_JOB, lambda: (NESTED, {}, "a template")), (60.0, *CHAT), 60.0)
    while not running.running():
        time.sleep(0.005)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGXCPU)
    with pytest.raises(OverBudget):
        running.result(30)


def test_a_reply_too_long_is_not_read(process: IsolatedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    process.run(TEMPLATE, (1.0, *CHAT), 5.0)
    with monkeypatch.context() as patch:
        patch.setattr(isolated_process, "MAX_REPLY_BYTES", 4)
        with pytest.raises(ProcessDied):
            process.run(TEMPLATE, (1.0, *CHAT), 5.0)
    assert process.run(TEMPLATE, (1.0, *CHAT), 5.0)[0][1] == ["Hi", False]


def test_a_template_that_fails_for_lack_of_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(chat_template, "spans_of", lambda *_: ())
    monkeypatch.setattr(chat_template, "marks_of", fail)
    with pytest.raises(TemplateStopped, match="was stopped: it needs more memory than is allowed"):
        ChatTemplate(PLAIN).render(USER)


def test_a_template_that_fails_without_tools_says_so() -> None:
    looping = ChatTemplate("{% for tool in tools %}{{ tool }}{% endfor %}")
    with pytest.raises(ModelFileError, match=r"fails without tools: TypeError: 'NoneType' object is not iterable"):
        looping.render(USER)
    with pytest.raises(ModelFileError, match="template fails: ZeroDivisionError"):
        ChatTemplate("{{ 1 / 0 }}").render(USER)


def test_errors_of_a_job_come_back(process: IsolatedProcess) -> None:
    refusing = SharedResource(-4, TEMPLATE_JOB, lambda: ("{{ raise_exception('no!') }}", {}, "this template"))
    failing = SharedResource(-5, TEMPLATE_JOB, lambda: ("{{ 1 / 0 }}", {}, "this template"))
    broken = SharedResource(-6, TEMPLATE_JOB, lambda: ("{% if %}", {}, "this template"))
    for _ in range(2):
        with pytest.raises(RequestError, match="this template refuses the messages: no!"):
            process.run(refusing, (1.0, *CHAT), 5.0)
        with pytest.raises(ModelFileError, match="this template fails: ZeroDivisionError"):
            process.run(failing, (1.0, *CHAT), 5.0)
        with pytest.raises(ModelFileError, match="this template is malformed, line 1"):
            process.run(broken, (1.0, *CHAT), 5.0)


def test_threads_share_a_process(process: IsolatedProcess) -> None:
    def render(number: int) -> str:
        chat = ([{"role": "user", "content": f"{number}"}], [], True, {})
        return str(process.run(TEMPLATE, (1.0, *chat), 5.0)[0][1][0])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(render, range(40))) == [f"{number}" for number in range(40)]


def test_close_ends_what_runs_and_what_waits() -> None:
    process = IsolatedProcess("test")
    endless = SharedResource(-7, TEMPLATE_JOB, lambda: (NESTED, {}, "a template"))
    jobs = [process.submit(endless, (60.0, *CHAT), 60.0) for _ in range(3)]
    jobs[1].cancel()
    while process.pid is None:
        time.sleep(0.005)
    pid = process.pid
    process.close()
    process.close()
    assert not is_running(pid)
    for job, error in zip(jobs, (BackendError, CancelledError, BackendError), strict=True):
        with pytest.raises(error):
            job.result(10)
    with pytest.raises(BackendError, match="was closed"):
        process.submit(TEMPLATE, (1.0, *CHAT), 5.0)


def test_too_many_jobs_are_refused(process: IsolatedProcess) -> None:
    process.limits = ProcessLimits(max_waiting_jobs=1)
    endless = SharedResource(-8, TEMPLATE_JOB, lambda: (NESTED, {}, "a template"))
    running = process.submit(endless, (60.0, *CHAT), 60.0)
    while not running.running():
        time.sleep(0.005)
    process.submit(TEMPLATE, (1.0, *CHAT), 5.0)
    with pytest.raises(QueueFull, match="1 jobs wait"):
        process.submit(TEMPLATE, (1.0, *CHAT), 5.0)


def test_tenants_are_served_round_robin(process: IsolatedProcess) -> None:
    """Each tenant's jobs in their order; one tenant's many jobs do not delay another's."""
    finished: list[str] = []
    slow = SharedResource(-9, TEMPLATE_JOB, lambda: (NESTED, {}, "a template"))
    blocking = process.submit(slow, (60.0, *CHAT), 0.3)
    jobs = []
    for name in ("a1", "a2", "a3", "a4", "b1", "b2", "c1"):
        job = process.submit(TEMPLATE, (1.0, *CHAT), 5.0, name[0])
        job.add_done_callback(lambda _, name=name: finished.append(name))
        jobs.append(job)
    with pytest.raises(OverBudget):
        blocking.result(60)
    for job in jobs:
        job.result(60)
    assert finished == ["a1", "b1", "c1", "a2", "b2", "a3", "a4"]


def test_a_full_queue_makes_room_for_another_tenant(process: IsolatedProcess) -> None:
    process.limits = ProcessLimits(max_waiting_jobs=3)
    slow = SharedResource(-10, TEMPLATE_JOB, lambda: (NESTED, {}, "a template"))
    running = process.submit(slow, (60.0, *CHAT), 60.0, "a")
    while not running.running():
        time.sleep(0.01)
    waiting = [process.submit(TEMPLATE, (1.0, *CHAT), 5.0, "a") for _ in range(3)]
    with pytest.raises(QueueFull):
        process.submit(TEMPLATE, (1.0, *CHAT), 5.0, "a")
    process.submit(TEMPLATE, (1.0, *CHAT), 5.0, "b")
    with pytest.raises(QueueFull, match="3 jobs wait"):
        waiting[2].result(0)
    assert not waiting[0].done()
    assert not waiting[1].done()
    with pytest.raises(QueueFull):  # now both have about the same number
        process.submit(TEMPLATE, (1.0, *CHAT), 5.0, "b")


def test_no_process_can_be_started(process: IsolatedProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(BackendError, match="cannot start the test process"):
        process.run(TEMPLATE, (1.0, *CHAT), 5.0)


def test_a_script_without_a_guard_may_use_it_and_leave_it_open(tmp_path: Path) -> None:
    """Nothing of the script runs again in the process, which ends with it."""
    script = tmp_path / "script.py"
    script.write_text(
        "from sporelm.processes.isolated_process import IsolatedProcess, SharedResource\n"
        "process = IsolatedProcess('x')\n"
        f"resource = SharedResource(1, {TEMPLATE_JOB!r}, lambda: ({PLAIN!r}, {{}}, 'a template'))\n"
        f"print(process.run(resource, (1.0, {USER!r}, [], True, {{}}), 5.0)[0], process.pid)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    spans, _, pid = done.stdout.strip().rpartition(" ")
    assert spans == "[['<user>', True], ['Hi', False]]"
    until = time.monotonic() + 20
    while is_running(int(pid)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not is_running(int(pid))


def test_ctrl_c_of_a_terminal_does_not_reach_it(process: IsolatedProcess) -> None:
    process.run(TEMPLATE, (1.0, *CHAT), 5.0)
    assert process.pid is not None
    assert os.getpgid(process.pid) != os.getpgid(0)


# ---- templates


def test_a_slow_template_is_stopped_in_the_other_process(process: IsolatedProcess) -> None:
    slow = ChatTemplate(NESTED).with_process(process, 0.05)
    for _ in range(2):
        with pytest.raises(TemplateStopped, match=r"was stopped: it takes more than 0\.05 s of CPU time"):
            slow.render(USER)
    assert process.pid is not None, "it stops itself: no new process is needed"
    assert str(ChatTemplate(PLAIN).with_process(process).render(USER)) == "<user>Hi"


def test_an_ordinary_chat_needs_no_other_process(process: IsolatedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "INLINE_SECONDS", 5.0)  # of a machine that does much else
    quick = ChatTemplate(PLAIN).with_process(process)
    quick.probe_features()
    with without_waiting():
        assert str(quick.render(USER * 50)) == "<user>Hi" * 50
    assert process.pid is None


def test_a_long_rendering_needs_to_wait(process: IsolatedProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "INLINE_SECONDS", 5.0)
    long = ChatTemplate("{{ 'x' * 2000000 if messages|length > 1 else '' }}" + PLAIN).with_process(process)
    many = USER * 3
    with without_waiting(), pytest.raises(NeedsIsolation):
        long.render(many)
    assert process.pid is None
    assert len(long.render(many)) == 2_000_000 + 3 * len("<user>Hi")
    assert process.pid is not None


def test_a_chat_that_proves_brief_is_rendered_here_again(
    process: IsolatedProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pause at the wrong moment, as of the garbage collector, does not count against a template for ever."""
    monkeypatch.setattr(chat_template, "INLINE_SECONDS", 5.0)
    quick = ChatTemplate(PLAIN).with_process(process)
    quick.probe_features()
    quick._max_inline_size = 0
    with without_waiting(), pytest.raises(NeedsIsolation):
        quick.render(USER)
    quick.render(USER)
    with without_waiting():
        assert str(quick.render(USER)) == "<user>Hi"


def test_marks_survive_the_way_through_the_other_process(process: IsolatedProcess) -> None:
    here = ChatTemplate(PLAIN + "{{ bos_token }}", {"bos_token": "<s>"})
    there = here.with_process(process)
    there._max_inline_size = 0
    chat = [{"role": "user", "content": "<user>Hi</s>"}, {"role": "assistant", "content": "\u00e9\U0001f636"}]
    assert there.render(chat) == here.render(chat)
    chat.append({"role": "user", "content": MarkedText("ab", b"\x01\x00")})
    assert there.render_checked(chat) == here.render_checked(chat)
    assert there.render_checked(chat).spans[-3:] == (("<user>a", True), ("b", False), ("<s>", True))


def test_trials_of_a_slow_template_have_an_end(process: IsolatedProcess) -> None:
    slow = ChatTemplate(NESTED).with_process(process, 0.05)
    slow._probe_seconds = 0.1
    began = time.process_time()
    slow.probe_features()
    assert time.process_time() - began < 5
    assert slow._probe_seconds <= 0
    assert not slow.supports_tools

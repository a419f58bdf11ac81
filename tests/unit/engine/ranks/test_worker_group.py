"""A group of ranks is like one worker; a lost rank ends no request."""

import threading
from pathlib import Path
from time import monotonic, sleep

import numpy as np
import pytest

from sporelm.engine import Engine, Request, Sampling, Step
from sporelm.engine.kv import KvSequence, OffloadStore
from sporelm.engine.lora_runtime import LoraMatrices
from sporelm.engine.ranks import messages, rank_server, worker_group
from sporelm.engine.ranks import rank as rank_module
from sporelm.engine.ranks.cache_shards import CacheShard
from sporelm.engine.ranks.rank import Envelope
from sporelm.engine.ranks.worker_group import WorkerGroup
from sporelm.engine.step import ScheduledSequence
from sporelm.errors import MemoryShortage, RankLost
from sporelm.ops.paged_attention import PAGE
from unit.engine.fake import VOCAB, engine, expected, limits
from unit.engine.ranks.fake_ranks import FakeWorker, Launcher

PROMPTS = [[5, 6, 7], list(range(90)), [3] * 20]
COLUMNS = ((0, 40), (40, 41), (41, VOCAB))


def run(launcher: Launcher, count: int = 20) -> None:
    """Generate greedily, and check tokens, ranks and cache."""
    made = launcher.engine()
    requests = [made.add(Request(prompt, max_tokens=count)) for prompt in PROMPTS]
    made.run(requests)
    assert [each.generated for each in requests] == [expected(prompt, count) for prompt in PROMPTS]
    made.check_integrity()
    made.close()
    made.runner.close()
    launcher.join()
    assert all(worker.is_closed for workers in launcher.starts for worker in workers)


def check_restart(launcher: Launcher, made: Engine, request: Request) -> None:
    """Check the tokens of a request, and that the ranks were started again, all of them woken; then close them."""
    assert request.generated == expected(PROMPTS[0], 5)
    assert len(launcher.starts) == 2
    assert not launcher.num_unwoken
    made.close()
    made.runner.close()
    launcher.join()


@pytest.mark.parametrize("kinds", [["thread"], ["remote"], ["thread", "remote", "thread"]])
def test_all_ranks_compute_all_steps(kinds: list[str]) -> None:
    launcher = Launcher(kinds)
    run(launcher)
    (workers,) = launcher.starts
    for worker in workers[1:]:
        np.testing.assert_array_equal(worker.cells, workers[0].cells)
        assert len(worker.steps) == len(workers[0].steps)


def test_micro_batches_give_the_same_tokens() -> None:
    launcher = Launcher(["thread", "remote"])
    launcher.micro_batches = 3
    run(launcher)
    (workers,) = launcher.starts
    assert len(workers[1].steps) == len(workers[0].steps) > 30


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.7, top_k=5, seed=3),
        Sampling(temperature=2.0, top_k=30, top_p=0.9, seed=3),
        Sampling(temperature=1.0, top_p=0.9, seed=4),
        Sampling(temperature=1.0, top_k=3, logprobs=2, seed=5),
        Sampling(temperature=0, repetition_penalty=1.5),
        Sampling(temperature=0.5, mirostat=2, seed=1),
    ],
)
def test_logits_that_are_cut_are_sampled_alike(sampling: Sampling) -> None:
    alone = engine()
    launcher = Launcher(["thread", "remote"], columns=COLUMNS)
    group = launcher.engine()
    found = []
    for each in (alone, group):
        request = each.add(Request(PROMPTS[0], sampling=sampling, max_tokens=30))
        each.run([request])
        found.append((request.generated, [score.logprob for score in request.logprobs]))
    assert found[0] == found[1]
    rows: list[np.ndarray] = []
    for _ in group.logits(PROMPTS[1], lambda row: rows.append(row.copy())):
        group.step()
    assert np.concatenate(rows).shape == (90, VOCAB)
    group.close()
    launcher.group().close()
    group.runner.close()


def test_only_candidates_are_fetched_for_top_k(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(["thread", "thread"], columns=COLUMNS)
    made = launcher.engine()
    monkeypatch.setattr(made.runner, "fetch_logits", None)
    request = made.add(Request(PROMPTS[0], sampling=Sampling(temperature=0.7, top_k=5, seed=3), max_tokens=5))
    made.run([request])
    assert request.finish_reason == "length"
    made.runner.close()


def test_a_lost_rank_is_replaced_and_no_text_changes() -> None:
    launcher = Launcher(["thread", "remote"])
    launcher.on_start = lambda workers: cut_off_once(launcher, workers)
    run(launcher)
    assert len(launcher.starts) == 4
    assert launcher.aborted.is_set()


def test_a_restart_can_be_seen() -> None:
    launcher = Launcher(["remote"])
    made = launcher.engine()
    seen = [made.runner.is_restarting]
    launcher.on_start = lambda workers: seen.append(made.runner.is_restarting)
    launcher.cut_off()
    made.run([made.add(Request(PROMPTS[0], max_tokens=5))])
    seen.append(made.runner.is_restarting)
    launcher.num_failures = 1
    with pytest.raises(RankLost):
        made.runner.restart()
    assert [*seen, made.runner.is_restarting] == [False, True, False, False]
    made.close()
    made.runner.close()


def cut_off_once(launcher: Launcher, workers: list[FakeWorker]) -> None:
    """Let the first three groups lose a rank in their seventh step."""
    if len(launcher.starts) <= 3:
        workers[0].on_run = lambda step: launcher.cut_off() if len(workers[0].steps) == 6 else None


def test_a_lost_rank_is_noticed_while_rank_0_waits_for_it() -> None:
    launcher = Launcher(["remote"])

    def wait(workers: list[FakeWorker]) -> None:
        def collective(step: Step) -> None:
            if len(launcher.starts) == 1 and len(workers[0].steps) == 3:
                launcher.cut_off()
                assert launcher.aborted.wait(5)
                raise RankLost("group: aborted")

        workers[0].on_run = collective

    launcher.on_start = wait
    run(launcher)
    assert len(launcher.starts) == 2


def test_a_stalled_rank_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_module, "STALL_SECONDS", 0.4)
    monkeypatch.setattr(rank_module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(rank_server, "BEAT_SECONDS", 60.0)  # the first process is as if it were stopped
    launcher = Launcher(["remote"])
    made = launcher.engine()
    monkeypatch.setattr(rank_server, "BEAT_SECONDS", 0.1)
    aborted = launcher.rank_aborted[0]
    launcher.starts[0][1].on_run = lambda step: launcher.wait(aborted)
    request = made.add(Request(PROMPTS[0], max_tokens=5))
    made.run([request])
    check_restart(launcher, made, request)


def test_a_long_step_is_not_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_module, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(rank_module, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(rank_server, "BEAT_SECONDS", 0.05)
    launcher = Launcher(["remote"])
    launcher.on_start = lambda workers: setattr(workers[1], "on_run", lambda step: sleep(0.5))
    made = launcher.engine()
    request = made.add(Request([1], max_tokens=2))
    made.run([request])
    assert request.finish_reason == "length"
    assert len(launcher.starts) == 1
    made.runner.close()


def test_requests_end_if_ranks_cannot_be_started_and_the_next_one_tries_again() -> None:
    launcher = Launcher(["remote"])
    made = launcher.engine()
    launcher.num_failures = 1
    launcher.cut_off()
    requests = [made.add(Request(prompt, max_tokens=5)) for prompt in PROMPTS]
    made.run(requests)
    assert {each.finish_reason for each in requests} == {"error"}
    assert all("could not be started again" in str(each.error) for each in requests)
    made.check_integrity()
    request = made.add(Request(PROMPTS[0], max_tokens=5))
    made.run([request])
    assert request.generated == expected(PROMPTS[0], 5)
    assert len(launcher.starts) == 2
    made.close()
    made.runner.close()


def test_a_request_that_kills_ranks_ends() -> None:
    launcher = Launcher(["remote"])

    def die(workers: list[FakeWorker]) -> None:
        def collective(step: Step) -> None:
            if 50 in step.sequences[-1].tokens:
                launcher.cut_off()
                assert launcher.aborted.wait(5)
                raise RankLost("group: aborted")

        workers[0].on_run = collective

    launcher.on_start = die
    made = launcher.engine()
    bad = made.add(Request([50, 51], max_tokens=5))
    made.run([bad])
    assert bad.finish_reason == "error"
    assert len(launcher.starts) == 4
    request = made.add(Request(PROMPTS[0], max_tokens=5))
    made.run([request])
    assert request.finish_reason == "length"
    made.runner.close()


def test_an_error_of_another_rank_alone_restarts_the_group() -> None:
    launcher = Launcher(["remote"])

    def fail(step: Step) -> None:
        if len(launcher.starts) == 1 and len(launcher.starts[0][1].steps) == 4:
            raise ZeroDivisionError("in a kernel")

    launcher.on_start = lambda workers: setattr(workers[1], "on_run", fail)
    run(launcher)
    assert len(launcher.starts) == 2
    assert not launcher.num_unwoken


@pytest.mark.parametrize("kind", ["thread", "remote"])
def test_an_error_of_another_rank_wakes_rank_0(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "AGREE_SECONDS", 0.1)
    launcher = Launcher([kind])

    def fail(step: Step) -> None:
        raise MemoryShortage("no room on this rank")

    def fail_alone(workers: list[FakeWorker]) -> None:
        if len(launcher.starts) == 1:
            workers[1].on_run = fail
            workers[0].on_run = lambda step: launcher.wait(launcher.aborted)

    launcher.on_start = fail_alone
    run(launcher)
    assert len(launcher.starts) == 2
    assert not launcher.num_unwoken


@pytest.mark.parametrize("kind", ["thread", "remote"])
def test_a_lost_rank_wakes_a_rank_that_waits_for_it_in_another_group(kind: str) -> None:
    launcher = Launcher([kind, "remote"])

    def wait_in_stage(workers: list[FakeWorker]) -> None:
        if len(launcher.starts) != 1:
            return
        first, second = launcher.rank_aborted  # of these ranks: a late one may begin its step after the restart

        def die(step: Step) -> None:
            launcher.cut_off()
            launcher.wait(second)

        workers[1].on_run = lambda step: launcher.wait(first)
        workers[2].on_run = die

    launcher.on_start = wait_in_stage
    run(launcher)
    assert len(launcher.starts) == 2
    assert not launcher.num_unwoken


@pytest.mark.parametrize("kind", ["thread", "remote"])
@pytest.mark.parametrize("is_in_step", [True, False])
def test_an_interrupted_step_blocks_no_later_one(kind: str, is_in_step: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "AGREE_SECONDS", 0.1)
    launcher = Launcher([kind])
    made = launcher.engine()
    (workers,) = launcher.starts
    workers[1].on_run = lambda step: launcher.wait(launcher.rank_aborted[0])

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    request = made.add(Request(PROMPTS[0], max_tokens=5))
    with monkeypatch.context() as patch:
        if is_in_step:
            patch.setattr(workers[0], "on_run", interrupt)
        else:  # before rank 0 computes
            patch.setattr(made.runner, "_run_here", interrupt)
        with pytest.raises(KeyboardInterrupt):
            made.step()
    made.run([request])
    check_restart(launcher, made, request)


def test_ranks_are_closed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_module, "CLOSE_SECONDS", 1.0)
    launcher = Launcher(["remote"] * 4)
    group = launcher.group()
    released = threading.Event()
    step = Step([ScheduledSequence(1, [5], 0, (0,), 1)], [])
    for worker, rank in zip(launcher.starts[0][1:], launcher.ranks, strict=True):
        worker.on_run = lambda step: (released.wait(20), None)[1]
        rank.send(Envelope(messages.RunStep(step)))
    began = monotonic()
    group.close()
    assert monotonic() - began < 3
    released.set()
    launcher.join()


def test_a_failed_export_does_not_restart_the_group() -> None:
    launcher = Launcher(["thread", "remote"])
    launcher.page_shards = [[CacheShard(0)], [CacheShard(1)], [CacheShard(0)]]
    group = launcher.group()

    def fail(*args: object) -> None:
        raise MemoryShortage("no room")

    assert len(group.export_pages([0])) == 2
    launcher.starts[0][1].start_export = fail  # type: ignore[method-assign, assignment]
    with pytest.raises(MemoryShortage):
        group.export_pages([0])
    assert group.lost is None
    group.close()
    launcher.join()


def test_an_error_of_all_ranks_is_passed_on() -> None:
    launcher = Launcher(["thread"])

    def fail(step: Step) -> None:
        raise MemoryShortage("no room")

    def fail_all(workers: list[FakeWorker]) -> None:
        for worker in workers:
            worker.on_run = fail

    launcher.on_start = fail_all
    group = launcher.group()
    made = launcher.engine()
    made.add(Request([1]))
    with pytest.raises(MemoryShortage):
        made.step()
    assert made.runner.lost is None
    group.close()
    made.runner.close()


def test_offloaded_content_survives_a_restart(tmp_path: Path) -> None:
    launcher = Launcher(["thread", "remote"], limits(num_pages=5))
    made = launcher.engine()
    store = made.kv_cache.offload_store = OffloadStore(tmp_path, made.runner, lambda: "model")
    held = made.sequence()
    text = list(range(40)) * 4
    made.run([made.add(Request(text, max_tokens=1, sequence=held))])
    made.run([made.add(Request([7] * 150, max_tokens=1))])  # evicts it
    assert store.counts.offloaded == 1
    launcher.cut_off()
    made.run([made.add(Request([7], max_tokens=30))])
    assert len(launcher.starts) == 2
    request = made.add(Request([*text, 9], max_tokens=3, sequence=held))
    made.run([request])
    assert request.generated == expected([*text, 9], 3)
    assert store.counts.restored == 1
    assert request.cached_tokens >= 2 * PAGE
    made.close()
    made.runner.close()


def test_sessions_and_adapters_start_lost_ranks_again(tmp_path: Path) -> None:
    launcher = Launcher(["thread", "remote"])
    launcher.on_start = use_tensors
    made = launcher.engine()

    def compute() -> KvSequence:
        sequence = made.sequence()
        made.run([made.add(Request(PROMPTS[1], max_tokens=1, sequence=sequence))])
        return sequence

    def lose() -> None:
        launcher.cut_off()
        while made.runner.lost is None:
            sleep(0.01)

    held, path = compute(), tmp_path / "session"
    assert made.save_session(held, path, "model", {"a": 1}) > 0
    waiting = made.add(Request(PROMPTS[0], max_tokens=3))
    lose()
    with pytest.raises(RankLost, match=r"content was lost .*Continue it once"):
        made.save_session(held, tmp_path / "other", "model", {})
    assert not (tmp_path / "other").exists()
    lose()
    restored, notes = made.load_session(path, "model")
    assert (restored.length, notes) == (held.length or len(PROMPTS[1]), {"a": 1})
    lose()
    made.use_adapters({1: "x"}, made.runner.build_lora_runtime({1: make_adapter()}))
    assert launcher.starts[3][2].lora.adapters.keys() == {1}
    made.run([waiting, made.add(Request([*PROMPTS[1], 9], max_tokens=1, sequence=held))])
    assert waiting.generated == expected(PROMPTS[0], 3)
    assert made.save_session(held, tmp_path / "other", "model", {}) > 0
    assert len(launcher.starts) == 4
    made.check_integrity()
    made.close()
    made.runner.close()
    launcher.join()


def test_a_session_is_loaded_by_the_next_ranks_if_these_cannot_be_started(tmp_path: Path) -> None:
    launcher = Launcher(["remote"])
    made = launcher.engine()
    launcher.cut_off()
    while made.runner.lost is None:
        sleep(0.01)
    launcher.num_failures = 1
    with pytest.raises(RankLost, match="could not be started again"):
        made.save_session(made.sequence(), tmp_path / "session", "model", {})
    assert made.save_session(made.sequence(), tmp_path / "session", "model", {}) > 0
    made.close()
    made.runner.close()
    launcher.join()


def make_adapter(value: float = 1.0) -> dict[str, LoraMatrices]:
    """Return an adapter of two weights."""
    pair = LoraMatrices(np.full((2, 3), value, np.float32), np.ones((2, 4), np.float32))
    return {"w": pair, "v": pair}


def use_tensors(workers: list[FakeWorker]) -> None:
    for worker in workers:
        worker.device.tensor = np.array


def lora_group(kinds: list[str]) -> tuple[Launcher, WorkerGroup]:
    launcher = Launcher(kinds)
    launcher.on_start = use_tensors
    return launcher, launcher.group()


def test_new_ranks_get_the_adapters() -> None:
    launcher, group = lora_group(["thread", "remote"])
    matrices = {1: make_adapter()}
    unused = group.build_lora_runtime(matrices)
    group.discard_lora_runtime(unused)
    group.set_lora_runtime(group.build_lora_runtime(matrices))
    for worker in launcher.starts[0]:
        assert worker.lora.adapters.keys() == {1}
    launcher.cut_off()
    group.restart()
    for worker in launcher.starts[1]:
        assert worker.lora.adapters.keys() == {1}
        np.testing.assert_array_equal(worker.lora.adapters[1]["w"].b, matrices[1]["w"].b)
    group.set_lora_runtime(None)
    assert all(worker.lora is None for worker in launcher.starts[1])
    group.close()


def test_adapters_that_are_built_during_a_restart_can_be_used() -> None:
    launcher, group = lora_group(["thread", "remote"])
    group.set_lora_runtime(group.build_lora_runtime({1: make_adapter()}))
    built = group.build_lora_runtime({1: make_adapter(), 2: make_adapter(2.0)})
    group.restart()
    group.set_lora_runtime(built)
    for worker in launcher.starts[1]:
        assert worker.lora.adapters.keys() == {1, 2}
        assert worker.lora.adapters[2]["v"].a[0, 0] == 2
    group.discard_lora_runtime(built)
    group.close()
    launcher.join()


def test_adapters_can_be_built_while_a_rank_is_lost() -> None:
    launcher, group = lora_group(["remote"])
    launcher.cut_off()
    built = group.build_lora_runtime({1: make_adapter()})
    group.restart()
    group.set_lora_runtime(built)
    assert [worker.lora.adapters.keys() for worker in launcher.starts[1]] == [{1}, {1}]
    group.close()
    launcher.join()


@pytest.mark.parametrize("failing", [0, 1])
def test_no_rank_keeps_adapters_that_another_one_cannot_build(failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher, group = lora_group(["remote", "thread"])
    (workers,) = launcher.starts

    def fail(adapters: object) -> None:
        raise MemoryShortage("no room")

    with monkeypatch.context() as patch:
        patch.setattr(workers[failing], "build_lora_runtime", fail)
        with pytest.raises(MemoryShortage):
            group.build_lora_runtime({1: make_adapter()})
    group.set_lora_runtime(None)  # waits for the others
    assert [worker.built for worker in workers] == [[], [], []]
    assert group.lost is None
    group.close()
    launcher.join()


def test_an_adapter_is_sent_once_and_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "MAX_PART_BYTES", 60)  # of one weight
    launcher, group = lora_group(["remote"])
    sent: list[object] = []
    send = launcher.ranks[0].send
    monkeypatch.setattr(launcher.ranks[0], "send", lambda envelope: (sent.append(envelope.message), send(envelope))[1])
    first, second = make_adapter(), make_adapter(2.0)
    group.set_lora_runtime(group.build_lora_runtime({1: first}))
    group.set_lora_runtime(group.build_lora_runtime({1: first, 2: second}))
    assert launcher.starts[0][1].lora.adapters.keys() == {1, 2}
    puts = [each for each in sent if isinstance(each, messages.PutAdapter)]
    assert [list(each.matrices) for each in puts] == [["w"], ["v"]] * 2
    group.set_lora_runtime(group.build_lora_runtime({2: second}))
    assert [len(each.adapters) for each in sent if isinstance(each, messages.DropAdapters)] == [1]
    group.close()
    launcher.join()


def test_results_are_fetched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = Launcher(["thread", "remote"], columns=COLUMNS)
    group = launcher.group()
    launcher.token_rank = 2
    hidden_group = launcher.group()
    step = Step([ScheduledSequence(1, list(range(40)), 0, (0,), 40)], [])
    logits, hidden = group.run(step).logits, hidden_group.embed(step)
    monkeypatch.setattr(worker_group, "MAX_PART_BYTES", 1000)
    np.testing.assert_array_equal(group.run(step).logits, logits)
    np.testing.assert_array_equal(group.run(step).rows([7, 3, 3]), logits[[7, 3, 3]])
    np.testing.assert_array_equal(hidden_group.embed(step), hidden)
    assert logits.shape == hidden.shape == (40, VOCAB)
    group.close()
    hidden_group.close()
    launcher.join()


def test_nothing_runs_after_close() -> None:
    launcher = Launcher(["thread", "remote"])
    group = launcher.group()
    group.close()
    group.close()
    with pytest.raises(RankLost):
        group.run(Step([], []))

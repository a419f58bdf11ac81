"""Compiles new grammars on trial in a child process, where a compilation that takes too long can be stopped.

llguidance does not count all of a compiler's work, and a compilation cannot be interrupted in this process.
"""

import itertools
from collections import OrderedDict
from concurrent.futures import Future
from copy import copy
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING

from sporelm.errors import RequestError
from sporelm.text.grammar.grammar import Grammar
from sporelm.text.grammar.grammar_checks import GRAMMAR_SECONDS
from sporelm.text.grammar.grammar_vocabulary import make_plain_vocabulary
from sporelm.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from sporelm.processes.isolated_process import IsolatedProcess

MAX_REMEMBERED_TRIALS = 512

_keys = itertools.count()


class _Trial:
    """The trial of one grammar: its result, and the pending jobs by tenant."""

    def __init__(self) -> None:
        self.result: Future[Exception | None] = Future()
        self.result.set_running_or_notify_cancel()  # several requests may wait for it
        self.jobs: dict[str, Future[None] | None] = {}  # None: being submitted
        self.is_finished = False


class GrammarTrials:
    """Compiles new grammars of one tokenizer on trial in a child process.

    A grammar that passes may be compiled in this process: that takes the same time, which is short. Recent results,
    passed or not, are remembered, so that a grammar is not tried again. The child serves tenants round robin: the many
    grammars of one tenant do not delay those of others.
    """

    def __init__(self, tokenizer: Tokenizer, process: "IsolatedProcess", seconds: float = GRAMMAR_SECONDS) -> None:
        """`seconds` is the CPU time of a trial."""
        from sporelm.processes.isolated_process import SharedResource

        self._process = process
        self.seconds = seconds
        self._resource = SharedResource(
            next(_keys), "sporelm.text.isolated_jobs:load_vocabulary", lambda: make_plain_vocabulary(tokenizer)
        )
        self._trials: OrderedDict[bytes, _Trial] = OrderedDict()  # by digests of sources
        self._lock = Lock()

    def submit(self, grammar: Grammar, tenant: str = "") -> "Future[Exception | None]":
        """Begin the trial of a grammar, or join an earlier one. The result is None or an error for `raise_failure`:
        RequestError for a grammar that cannot be used, QueueFull or BackendError if it could not be tried.

        Raises RequestError for a grammar that is too long, too deep or of a wrong type.
        """
        source = grammar.source()
        key = sha256(source.encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            trial = self._trials.setdefault(key, _Trial())
            self._trials.move_to_end(key)
            while len(self._trials) > MAX_REMEMBERED_TRIALS:
                self._trials.popitem(last=False)
            # A grammar that waits among many of another tenant is queued for this one too.
            if trial.is_finished or tenant in trial.jobs:
                return trial.result
            trial.jobs[tenant] = None
        try:
            job = self._process.submit(self._resource, (source,), self.seconds, tenant)
        except Exception as error:
            self._finish_job(key, trial, tenant, error)
        else:
            with self._lock:
                trial.jobs[tenant] = job
            job.add_done_callback(
                lambda job: None if job.cancelled() else self._finish_job(key, trial, tenant, job.exception())
            )
        return trial.result

    def check(self, grammar: Grammar, tenant: str = "") -> None:
        """Try a grammar, and wait for the result. Raises as `submit` does, and the result."""
        raise_failure(self.submit(grammar, tenant).result())

    def _finish_job(self, key: bytes, trial: _Trial, tenant: str, error: BaseException | None) -> None:
        """Set the result of a trial, unless the job says nothing about the grammar and another tenant's is pending."""
        from sporelm.processes.isolated_process import OverBudget, ProcessDied

        if isinstance(error, OverBudget):
            problem = f"its compilation takes more than {self.seconds:g} s of CPU time"
            error = RequestError(f"the grammar cannot be used: {problem}. Make it simpler.")
        elif isinstance(error, ProcessDied):
            error = RequestError("the grammar cannot be used: its compilation takes too much memory. Make it simpler.")
        is_conclusive = error is None or type(error) is RequestError
        with self._lock:
            trial.jobs.pop(tenant, None)
            if trial.is_finished or (not is_conclusive and trial.jobs):
                return
            trial.is_finished = True
            if not is_conclusive and self._trials.get(key) is trial:
                del self._trials[key]
            other_jobs = [job for job in trial.jobs.values() if job is not None]
        if isinstance(error, Exception):
            trial.result.set_result(error.with_traceback(None))
        elif error is not None:
            trial.result.set_exception(error)
        else:
            trial.result.set_result(None)
        for job in other_jobs:
            job.cancel()


def raise_failure(error: Exception | None) -> None:
    """Raise a copy of the error of a trial, if there is one. An error that is kept and raised again and again would
    hold the frames of every request that met it."""
    if error is not None:
        raise copy(error)

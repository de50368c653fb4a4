"""An engine that replays scripts: tokens come in chosen steps, and every abort is recorded."""

import asyncio

from deodar.errors import RequestError
from deodar.text.markers import MarkerSplitter
from deodar.types import EngineInfo, EngineStats, TokenEvent, Usage


class FakeEngine:
    """`script(request)` gives the steps, each a tuple of ids; the stop token ends the answer.

    A step may be an exception, raised as it is, or the words "error" and "wait": "error" ends the
    stream as an engine failure, "wait" pauses until the request is aborted.
    """

    def __init__(self, eos_id, script):
        self.eos_id = eos_id
        self.script = script
        self.requests = []
        self.aborted = []
        self.healthy = True
        self.delay_s = 0.0
        self._ends = {}
        self.cached_tokens = 0
        self.top = ()
        self.waiting = 0
        self.flushed = 0
        self.injected = []

    async def submit(self, request):
        self.requests.append(request)
        ended = self._ends[request.request_id] = asyncio.Event()
        count = 0
        try:
            for step in self.script(request):
                if isinstance(step, Exception):
                    raise step
                if step == "error":
                    yield self._event(request, (), count, "error", error="the step failed")
                    return
                if step == "wait":
                    self.waiting += 1
                    await ended.wait()
                    self.waiting -= 1
                await asyncio.sleep(self.delay_s)
                if ended.is_set():
                    yield self._event(request, (), count, "abort")
                    return
                room = request.sampling.max_tokens - count
                ids = tuple(step)[:room]
                stops = {self.eos_id, *request.sampling.stop_token_ids}
                at = next((i for i, t in enumerate(ids) if t in stops), None)
                if at is not None:
                    ids = ids[: at + 1]
                count += len(ids)
                reason = "stop" if at is not None else "length" if len(ids) == room else None
                yield self._event(request, ids, count, reason)
                if reason:
                    return
            yield self._event(request, (), count, "stop")
        finally:
            del self._ends[request.request_id]

    def _event(self, request, ids, count, reason, error=None):
        seed = request.sampling.seed
        return TokenEvent(
            request_id=request.request_id,
            token_ids=ids,
            logprobs=(-0.25,) * len(ids),
            top_logprobs=(self.top[: request.sampling.top_logprobs],) * len(ids),
            usage=Usage(
                prompt_tokens=len(request.prompt_ids),
                completion_tokens=count,
                cached_tokens=self.cached_tokens,
            ),
            finish_reason=reason,
            stop_token_id=ids[-1] if reason == "stop" and ids else None,
            error=error,
            seed=7 if seed is None else seed,
        )

    async def abort(self, request_id):
        self.aborted.append(request_id)
        if request_id in self._ends:
            self._ends[request_id].set()

    def health(self):
        return self.healthy

    def info(self):
        return EngineInfo(
            pid=1, context=2000, vocab_size=300, slots=4, step_tokens=64, device="none",
            numerics="kv",
        )  # fmt: skip

    def stats(self):
        return EngineStats(running=len(self._ends), ready=self.healthy)

    async def flush_cache(self):
        if self._ends:
            raise RequestError("requests are running", code="busy")
        self.flushed += 1

    async def inject(self, what):
        self.injected.append(what)


def token_ids(tokenizer, text):
    """Ids of a scripted answer: spelled markers become their single ids."""
    splitter = MarkerSplitter()
    ids = []
    for piece in [*splitter.push(text), *splitter.finish()]:
        if piece.special:
            ids.append(tokenizer.special[piece.text])
        else:
            ids += tokenizer.encode_text(piece.text)
    return ids


def steps_of(ids, size=1):
    return [tuple(ids[i : i + size]) for i in range(0, len(ids), size)]

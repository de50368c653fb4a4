"""Every request field of the chat route that clients are known to send, and what becomes of it.

Honoured fields are those of `schema.ChatBody`. The two tables here hold the others: IGNORED ones
cannot change the answer, REFUSED ones would, so a value that asks for something is a 400 that names
the field (design D6). Unknown names are ignored with a debug line. null means absent everywhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deodar.errors import RequestError

logger = logging.getLogger("deodar.server")


@dataclass(frozen=True, slots=True)
class Refusal:
    """neutral: values that ask for nothing and pass. reason: the rest of the 400's sentence."""

    reason: str
    neutral: tuple[Any, ...] = ()


_LATER = "is not supported yet"
_GRAMMAR = "needs grammar-constrained decoding, which is not supported yet"
_IMAGES = "needs image input, which is not supported yet"
_CLUSTER = "belongs to a cluster of engines; this server is a single engine"
_LOGPROBS = "log-probabilities over HTTP are not supported yet"
_OFF = (False,)

IGNORED: Mapping[str, str] = {
    "user": "not seen by the model",
    "metadata": "not seen by the model",
    "store": "nothing is stored",
    "service_tier": "there is one tier",
    "safety_identifier": "not seen by the model",
    "prompt_cache_key": "an affinity hint for routers",
    "session_id": "an affinity hint for routers",
    "verbosity": "the model has no such control",
    "prediction": "a speed hint",
    "modalities": "answers are text",
    "stream_interval": "a maximum; every step is sent at once",
    "priority": "changes the order of waiting requests, not the answer; the queue is first in, "
    "first out",
    "cache_salt": "nothing is shared between requests",
    "extra_key": "nothing is shared between requests",
    "spaces_between_special_tokens": "special tokens are never part of the text",
    "return_cached_tokens_details": "cached tokens are always reported",
    "guided_decoding_backend": "there is one backend",
    "name": "not seen by the model",
}

REFUSED: Mapping[str, Refusal] = {
    "n": Refusal("only 1 is supported yet", (1,)),
    "best_of": Refusal("only 1 is supported", (1,)),
    "presence_penalty": Refusal(_LATER, (0,)),
    "frequency_penalty": Refusal(_LATER, (0,)),
    "repetition_penalty": Refusal(_LATER, (1,)),
    "min_tokens": Refusal(_LATER, (0,)),
    "skip_special_tokens": Refusal("only true is supported: answers are parsed", (True,)),
    "stop_regex": Refusal(_LATER, ([], "")),
    "logit_bias": Refusal(_LATER, ({},)),
    "logprobs": Refusal(_LOGPROBS, _OFF),
    "top_logprobs": Refusal(_LOGPROBS, (0,)),
    "prompt_logprobs": Refusal(_LOGPROBS, _OFF),
    "logprob_token_ids": Refusal(_LOGPROBS, ([],)),
    "return_tokens_as_token_ids": Refusal(_LOGPROBS, _OFF),
    "return_token_ids": Refusal(_LATER, _OFF),
    "echo": Refusal(_LATER, _OFF),
    "allowed_token_ids": Refusal(_LATER, ([],)),
    "bad_words": Refusal(_LATER, ([],)),
    "input_ids": Refusal("send messages to this route"),
    "return_hidden_states": Refusal(_LATER, _OFF),
    "return_meta_info": Refusal(_LATER, _OFF),
    "return_routed_experts": Refusal(_LATER, _OFF),
    "structured_outputs": Refusal(_GRAMMAR, ({},)),
    "guided_json": Refusal(_GRAMMAR),
    "guided_regex": Refusal(_GRAMMAR),
    "guided_choice": Refusal(_GRAMMAR),
    "guided_grammar": Refusal(_GRAMMAR),
    "regex": Refusal(_GRAMMAR),
    "ebnf": Refusal(_GRAMMAR),
    "json_schema": Refusal(_GRAMMAR),
    "separate_reasoning": Refusal(
        "only true is supported: reasoning has a field of its own", (True,)
    ),
    "stream_reasoning": Refusal("only true is supported", (True,)),
    "thinking_token_budget": Refusal(_LATER),
    "chat_template": Refusal("the prompt format is fixed; there are no templates"),
    "add_special_tokens": Refusal("the prompt format is fixed", _OFF),
    "documents": Refusal(_LATER, ([],)),
    "mm_processor_kwargs": Refusal(_IMAGES, ({},)),
    "kv_transfer_params": Refusal(_CLUSTER),
    "bootstrap_host": Refusal(_CLUSTER),
    "bootstrap_port": Refusal(_CLUSTER),
    "bootstrap_room": Refusal(_CLUSTER),
    "routed_dp_rank": Refusal(_CLUSTER),
    "truncate_prompt_tokens": Refusal(_LATER),
    "truncation_side": Refusal(_LATER),
    "lora_path": Refusal("adapters are not supported"),
    "custom_logit_processor": Refusal("custom code is never run"),
    "vllm_xargs": Refusal("custom code is never run", ({},)),
    "use_beam_search": Refusal("beam search is not supported", _OFF),
    "repetition_detection": Refusal(_LATER),
    "functions": Refusal("use `tools`", ([],)),
    "function_call": Refusal("use `tool_choice`", ("none", "auto")),
    "audio": Refusal("answers are text"),
    "web_search_options": Refusal("there is no web search", ({},)),
}


def check_fields(body: Mapping[str, Any], honoured: frozenset[str]) -> None:
    """Refuse what would change the answer; log unknown names. RequestError names the field."""
    for name, value in body.items():
        if value is None or name in honoured or name in IGNORED:
            continue
        refusal = REFUSED.get(name)
        if refusal is None:
            logger.debug("unknown field ignored: %.64r", name)
        elif not any(type(value) is type(v) and value == v for v in _numbers(refusal.neutral)):
            raise RequestError(f"`{name}`: {refusal.reason}", param=name)


def _numbers(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """Whole numbers are neutral in both spellings, 0 and 0.0; booleans are no numbers."""
    return values + tuple(float(v) for v in values if type(v) is int)

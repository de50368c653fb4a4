"""generation_config.json to sampling defaults."""

import pytest

from deodar.engine.defaults import sampling_defaults
from deodar.errors import ConfigError
from deodar.types import SamplingParams


def test_nothing_given_is_the_built_in():
    assert sampling_defaults({}, 1) == SamplingParams()
    assert sampling_defaults({"temperature": None, "transformers_version": "5"}, 1) == (
        SamplingParams()
    )


def test_the_file_decides():
    given = {"temperature": 0.3, "top_p": 0.95, "max_new_tokens": 1024, "eos_token_id": [1, 9]}
    assert sampling_defaults(given, 1) == SamplingParams(
        temperature=0.3, top_p=0.95, max_tokens=1024, stop_token_ids=(9,)
    )
    assert sampling_defaults({"do_sample": False, "temperature": 0.3}, 1).temperature == 0
    assert sampling_defaults({"eos_token_id": 1}, 1).stop_token_ids == ()


@pytest.mark.parametrize(
    "given",
    [
        {"temperature": -1},
        {"temperature": "hot"},
        {"temperature": True},
        {"top_p": 0},
        {"top_k": -3},
        {"max_new_tokens": 0},
        {"eos_token_id": ["x"]},
    ],
)
def test_values_out_of_range_are_named(given):
    with pytest.raises(ConfigError, match=next(iter(given))):
        sampling_defaults(given, 1)

"""Every error that Deodar raises on purpose.

DeodarError            one readable line; the command line exits with 2
├── ConfigError        a model or engine configuration that contradicts itself
├── CheckpointError    files that are missing, damaged or of another structure
├── TokenizerError     a tokenizer that cannot serve this model
├── WireError          bytes between the processes that are no message of this version
└── RequestError       a request that cannot be honoured; carries the HTTP status and the field
"""

from __future__ import annotations


class DeodarError(Exception):
    """Base of all expected errors. The text names the field, the value and the limit."""


class ConfigError(DeodarError):
    """A configuration that contradicts itself or names an unknown thing."""


class CheckpointError(DeodarError):
    """Weights on disk that cannot be read as this model."""


class TokenizerError(DeodarError):
    """A tokenizer that lacks a special token, or spells one with several ids."""


class WireError(DeodarError):
    """Bytes between API and engine process that are no message of this version."""


class RequestError(DeodarError):
    """A request that is refused. `param`: the field at fault; `status`, `code`: see api 3.7."""

    def __init__(
        self, message: str, *, param: str | None = None, status: int = 400, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code

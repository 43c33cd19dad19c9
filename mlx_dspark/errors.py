"""Every error a user can cause, as one tree. Knows nothing else of the package.

    DsparkError
    ├── OptionError       an option outside what it allows
    ├── ModelNotFound     a name that is no local folder and no reachable hub repository
    ├── CheckpointError   files on disk that cannot be what they claim
    │   ├── ConfigError     config.json: a missing, contradictory or unsupported key
    │   ├── TensorError     a safetensors file: damaged, incomplete, or a tensor too few, too many, misshapen
    │   └── TokenizerError  tokenizer.json or the chat template
    ├── PairMismatch      a target and a drafter that do not belong together
    ├── PromptError       a prompt that cannot be decoded from (empty, too long, an unknown role)
    ├── ConversionError   a checkpoint that cannot be converted, or an output that cannot be written
    └── CalibrationError  measured costs that cannot be costs

Each message names what was given, the limit, the likely cause and the next step, in one sentence.
A command that meets one prints that sentence and exits with 2.
"""

from __future__ import annotations


class DsparkError(Exception):
    """Base of all errors whose text is meant for the user."""

    exit_code = 2


class OptionError(DsparkError, ValueError):
    """An option's value is outside what the option allows."""


class ModelNotFound(DsparkError):
    """A model name resolves to nothing on disk and nothing on the hub."""


class CheckpointError(DsparkError):
    """A checkpoint's files cannot be what they claim to be."""


class ConfigError(CheckpointError):
    """A configuration key is missing, contradictory or unsupported."""


class TensorError(CheckpointError):
    """A tensor file is damaged, or a tensor is missing, surplus or misshapen."""


class TokenizerError(CheckpointError):
    """The tokenizer or the chat template cannot be used."""


class PairMismatch(DsparkError):
    """The drafter was not made for this target."""


class PromptError(DsparkError, ValueError):
    """The prompt cannot be decoded from."""


class ConversionError(DsparkError):
    """A checkpoint cannot be converted, or its output cannot be written."""


class CalibrationError(DsparkError, ValueError):
    """A cost table holds something that is no cost."""

"""Two names -> a Pair: resolve, read both configurations, match them, build, check every tensor, probe the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx

from mlx_dspark.checkpoint.config import DrafterConfig, TargetConfig
from mlx_dspark.checkpoint.drafter_config import read_drafter_config
from mlx_dspark.checkpoint.registry import drafter_for, pair_for
from mlx_dspark.checkpoint.resolve import resolve
from mlx_dspark.checkpoint.target_config import read_target_config
from mlx_dspark.checkpoint.tokenizer import Tokenizer
from mlx_dspark.checkpoint.weights import Weights
from mlx_dspark.engine.calibrate import calibrated, key_of
from mlx_dspark.engine.calibration_store import Key
from mlx_dspark.engine.fingerprint import fingerprint
from mlx_dspark.engine.pair import Pair
from mlx_dspark.engine.settings import LoadOptions
from mlx_dspark.errors import OptionError, PairMismatch, TokenizerError
from mlx_dspark.models.drafter import Contest, Drafter, NoDrafter
from mlx_dspark.models.dspark import DSpark
from mlx_dspark.models.lookup import Lookup
from mlx_dspark.models.materialize import materialize
from mlx_dspark.models.nemotron_h import NemotronH
from mlx_dspark.models.probe import probe_widths
from mlx_dspark.ops.choose import choose_kernels, on_cpu
from mlx_dspark.ops.kernels import Kernels
from mlx_dspark.version import __version__

DTYPES = {"float32": mx.float32, "bfloat16": mx.bfloat16, "float16": mx.float16}
SMALL_DRAFTER = 1024  # hidden units
Say = Callable[[str], None]


def load(
    model: str = "demo",
    drafter: str | None = None,
    *,
    say: Say = lambda line: None,
    warn: Say = lambda line: None,
    **settings: Any,
) -> Pair:
    """Load a target and the drafter that goes with it (see LoadOptions for the settings).

    Everything that can be wrong with either checkpoint is found before the first weight is read. `say` is told how it
    goes, `warn` what a user should know afterwards.
    """
    options = LoadOptions(model=model, drafter=drafter, **settings)
    drafter_name = _drafter_name(options)
    folder = resolve(options.model, what="model")
    config = read_target_config(folder)
    drafter_folder = resolve(drafter_name, what="drafter") if drafter_name else None
    drafter_config = read_drafter_config(drafter_folder) if drafter_folder else None
    if drafter_config:
        check_pair(config, drafter_config)
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise TokenizerError(
            f"{folder}: the tokenizer has {tokenizer.vocab_size} tokens, but vocab_size is {config.vocab_size}; "
            "the tokenizer is not this model's"
        )
    kernels, sentence = choose_kernels(config.state_size)
    say(sentence)
    target = _target(folder, config, options, kernels, say)
    chosen = _drafter(options, drafter_folder, drafter_config, target)
    say("reading weights")
    nbytes = materialize([target, chosen])
    say("probing the device")
    widths = probe_widths(target)
    target.plan = widths.plan
    names = {"model": options.model, "drafter": drafter_name, "device": device_name(), "kernels": sentence}
    eos = config.eos_ids | tokenizer.eos_ids
    key = _key(options, names, target, [folder, drafter_folder] if drafter_folder else [folder])
    pair = Pair(target, chosen, tokenizer, config, widths, eos, names, nbytes, key)
    pair.use(calibrated(pair, measure_now=options.calibrate, say=say, warn=warn))
    return pair


def _key(options: LoadOptions, names: dict[str, str | None], target: NemotronH, folders: Sequence[Path]) -> Key:
    """All that a measurement of this pair's costs depends on."""
    held = {"dtype": str(target.dtype), "drafter_bits": options.drafter_bits, "plan": target.plan.describe()}
    versions = {"mlx-dspark": __version__, "mlx": version("mlx")}
    about = {"device": names["device"], "kernels": names["kernels"], **held, **versions}
    return key_of(about, *(fingerprint(folder) for folder in folders))


def check_pair(target: TargetConfig, drafter: DrafterConfig) -> None:
    """Raise PairMismatch unless the drafter reads this target's hidden states and speaks its vocabulary."""
    pairs = (
        ("hidden_size", drafter.hidden_size, target.hidden_size),
        ("vocab_size", drafter.vocab_size, target.vocab_size),
    )
    for key, mine, theirs in pairs:
        if mine != theirs:
            raise PairMismatch(
                f"the drafter's {key} is {mine}, but the target's is {theirs}; it was made for another target"
            )
    if drafter.taps[-1] >= target.layers:
        raise PairMismatch(
            f"the drafter's target_layer_ids end at layer {drafter.taps[-1]}, but the target has layers "
            f"0-{target.layers - 1}; it was made for another target"
        )


def device_name() -> str:
    """The device in words, `gpu (Apple M4 Pro)` or `cpu`."""
    device = mx.default_device()
    if device.type == mx.DeviceType.gpu:
        return f"gpu ({mx.device_info().get('device_name', 'unknown')})"
    return "cpu"


def _drafter_name(options: LoadOptions) -> str | None:
    if options.mode in ("baseline", "lookup"):
        return None
    name = options.drafter or drafter_for(options.model)
    if name is None and options.mode == "dspark":
        raise OptionError(
            f"--mode dspark needs a drafter, and none is known for {options.model}; give one as --drafter"
        )
    return name


def _copies(options: LoadOptions) -> bool:
    """Whether lookup drafts: as said, else as the registry has it for the pair, else not."""
    if options.mode == "lookup" or options.lookup_drafts is not None:
        return options.mode == "lookup" or bool(options.lookup_drafts)
    known = pair_for(options.model)
    return known is not None and known.lookup_drafts and options.mode != "baseline"


def _dtype(options: LoadOptions) -> mx.Dtype | None:
    """None is the checkpoint's own. MLX's CPU sums bf16 quantised products in bf16 and lacks bf16 experts."""
    if options.dtype != "auto":
        return DTYPES[options.dtype]
    return mx.float32 if on_cpu() else None


def _target(folder: Path, config: TargetConfig, options: LoadOptions, kernels: Kernels, say: Say) -> NemotronH:
    weights = Weights(folder, config.quantization, _dtype(options), kernels=kernels)
    if (
        on_cpu()
        and not kernels.mixed
        and weights.dtype != mx.float32
        and config.experts
        and config.quantization is None
    ):
        raise OptionError(
            f"--dtype is {options.dtype}, but MLX's CPU runs unquantised experts in float32 only; use that"
        )
    target = NemotronH.load(config, weights)
    if weights.ignored:
        say(f"leaving {len(weights.ignored)} mtp tensors aside")
    return target


def _drafter_bits(config: DrafterConfig) -> int:
    """4 bits where reading the weights is what costs; a small drafter sits in a CPU's caches as it is."""
    return 0 if on_cpu() and config.hidden_size < SMALL_DRAFTER else 4


def _drafter(options: LoadOptions, folder: Path | None, config: DrafterConfig | None, target: NemotronH) -> Drafter:
    parts: list[Drafter] = []
    if _copies(options):
        parts.append(Lookup())
    if folder and config:
        bits = _drafter_bits(config) if options.drafter_bits is None else options.drafter_bits
        weights = Weights.with_nvfp4(folder, config.quantization, target.dtype, target.kernels)
        parts.append(DSpark.load(config, weights, target.head, bits))
    if len(parts) > 1:
        return Contest(parts)
    return parts[0] if parts else NoDrafter()

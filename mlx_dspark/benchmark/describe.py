"""What a pair is, for its page: read from its files and the registry, nothing guessed. Knows no measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlx_dspark.benchmark.parameters import count_parameters
from mlx_dspark.benchmark.report import PairFacts
from mlx_dspark.checkpoint.config import DrafterConfig, Quantization, TargetConfig
from mlx_dspark.checkpoint.drafter_config import read_drafter_config
from mlx_dspark.checkpoint.registry import KnownPair, pair_for
from mlx_dspark.checkpoint.resolve import EMBEDDED, resolve
from mlx_dspark.checkpoint.safetensors import read_header
from mlx_dspark.engine.pair import Pair

KINDS = {"M": "Mamba-2", "*": "attention", "E": "experts", "-": "dense MLP"}
PACKED = {"U8", "U32"}


def describe(pair: Pair) -> PairFacts:
    """Facts of a loaded pair; its folders must still be there."""
    model, drafter_name = str(pair.names["model"]), pair.names["drafter"]
    known = pair_for(model)
    folders = [resolve(model), *([resolve(drafter_name, what="drafter")] if drafter_name else [])]
    drafter = read_drafter_config(folders[1]) if drafter_name else None
    parameters, active = count_parameters(pair.config)
    return PairFacts(
        name=known.title if known else shown(model),
        target=shown(model),
        drafter=shown(drafter_name) if drafter_name else None,
        maker=known.maker if known else model.partition("/")[0] if _is_repository(model) else None,
        licence=known.licence if known else None,
        summary=known.summary if known else _summary(pair.config),
        notes=known.notes if known else "",
        pattern=pair.config.pattern,
        taps=drafter.taps if drafter else (),
        parameters=parameters,
        active_parameters=active,
        disk_bytes=sum(f.stat().st_size for folder in folders for f in folder.glob("*.safetensors")),
        loaded_bytes=pair.nbytes,
        target_facts=tuple(_target_facts(pair.config)),
        drafter_facts=tuple(_drafter_facts(folders[1], drafter)) if drafter else (),
        features=tuple(_features(pair, drafter)),
        commands=tuple(_commands(model, drafter_name, known)),
        exact=pair.widths.exact,
    )


def shown(name: str) -> str:
    """A repository or embedded name as it is; of a folder its last part, since the rest is this machine's own."""
    return name if name in EMBEDDED or _is_repository(name) else Path(name).resolve().name


def _is_repository(name: str) -> bool:
    return name.count("/") == 1 and not name.startswith((".", "/", "~")) and not Path(name).is_dir()


def _summary(config: TargetConfig) -> str:
    kinds = [KINDS[letter] for letter in KINDS if letter in config.pattern]
    return f"A hybrid of {', '.join(kinds)} layers." if len(kinds) > 1 else f"{kinds[0]} layers."


def _target_facts(c: TargetConfig) -> list[tuple[str, str]]:
    counts = [f"{c.pattern.count(letter)} {name}" for letter, name in KINDS.items() if letter in c.pattern]
    facts = [("layers", f"{c.layers}: {', '.join(counts)}"), ("hidden size", f"{c.hidden_size:,}")]
    if "M" in c.pattern:
        facts.append(("Mamba-2", f"{c.mamba_heads} heads of {c.mamba_head_dim}, state {c.state_size}"))
    if "*" in c.pattern:
        facts.append(("attention", f"{c.heads} heads of {c.head_dim}, {c.kv_heads} for keys and values"))
    if "E" in c.pattern:
        shared = f", a shared one of {c.shared_size:,}" if c.shared_size else ""
        facts.append(("experts", f"{c.experts_per_token} of {c.experts} a token, {c.expert_size:,} wide{shared}"))
    facts += [
        ("vocabulary", f"{c.vocab_size:,}"),
        ("context", f"{c.max_positions:,} tokens"),
        ("weights", _weights(c.quantization)),
    ]
    return facts


def _weights(q: Quantization | None) -> str:
    return "not quantised" if q is None else f"{q.bits}-bit, groups of {q.group_size}"


def _drafter_facts(folder: Path, c: DrafterConfig) -> list[tuple[str, str]]:
    facts = [
        ("drafts", f"up to {c.max_draft} a round"),
        ("layers", f"{c.layers} attention, hidden size {c.hidden_size:,}"),
        ("window", f"{c.window:,} tokens"),
        ("reads", f"target layers {', '.join(map(str, c.taps))}"),
        ("Markov head", f"rank {c.markov_rank}"),
        ("confidence", "a head of its own" if c.confidence_head else "no head for it"),
    ]
    tensors = [t for file in sorted(folder.glob("*.safetensors")) for t in read_header(file).values()]
    if not PACKED & {t.dtype for t in tensors}:
        facts.insert(0, ("parameters", big(sum(_size(t.shape) for t in tensors))))
    return facts


def _size(shape: Sequence[int]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count


def _features(pair: Pair, drafter: DrafterConfig | None) -> list[str]:
    features = []
    if pair.widths.exact:
        features.append("Bit-exact: a verify of several tokens gives the bits of single steps on this device")
    if drafter:
        features.append("Lossless drafting: drafted text is the plain text, greedy or sampled")
    if "M" in pair.config.pattern:
        features.append("Recurrent state rebuilt at the accept point, never approximated")
    if _thinks(pair):
        features.append("Thinking mode, on or off for each request")
    return features


def _thinks(pair: Pair) -> bool:
    """Whether the chat template heeds the thinking switch."""
    if not pair.tokenizer.has_chat_template:
        return False
    hello = [{"role": "user", "content": "Hello"}]
    on, off = (pair.tokenizer.chat_ids(hello, enable_thinking=switch) for switch in (True, False))
    return on != off


def _commands(model: str, drafter: str | None, known: KnownPair | None) -> list[str]:
    given = "" if known and known.name == "demo" else f" --model {shown(model)}"
    if drafter and not (known and drafter == known.drafter):
        given += f" --drafter {shown(drafter)}"
    return [
        "pip install mlx-dspark",
        f'mlx-dspark generate{given} --prompt "Hello"',
        f"mlx-dspark serve{given}",
        f"mlx-dspark benchmark{given}",
    ]


def big(count: float) -> str:
    """A count in words: 16.6M, 31.6B."""
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "K")):
        if count >= unit:
            return f"{count / unit:.3g}{name}"
    return str(int(count))


def bytes_text(count: float) -> str:
    """Bytes in words: 9.6 MB, 18.2 GB."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"

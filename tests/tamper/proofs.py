"""Changes of a certificate's proof, and of its bytes. None keeps the file from stating what it
states, unless it happens to hit the statement's own bytes."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np

from check.writer import NO_TABLE, Draft, seal
from tamper.statement import array

Rng = np.random.Generator
Change = Callable[[Draft, Rng], None]

ODD = np.array([np.nan, -0.0, 5e-324, -5e-324, 2.0**-1022, 1e-300, 1e300, -1e300, 2.0**53, 1e-8])


def _rows(draft: Draft) -> list[dict[str, Any]]:
    return [*draft.header["steps"], draft.header["final"]]


def _any(items: list[Any], rng: Rng) -> Any:
    return items[int(rng.integers(len(items)))] if items else None


def _mixed(values: np.ndarray, rng: Rng) -> np.ndarray:
    """Some of the numbers others: drawn, absurd, of another sign, or moved a little."""
    share = float(rng.choice([0.02, 0.3, 1.0]))
    spread = float(rng.choice([0.3, 1.0, 30.0, 1e6]))
    new = [
        rng.normal(size=values.shape) * spread,
        rng.uniform(0, 1, values.shape),
        rng.choice(ODD, values.shape),
        -values,
        np.zeros(values.shape),
        np.ones(values.shape),
        values * (1 + 1e-3 * rng.normal(size=values.shape)),
    ][int(rng.integers(7))]
    return np.where(rng.random(values.shape) < share, new, values)


def slopes(draft: Draft, rng: Rng) -> None:
    rows = _any([r for r in _rows(draft) if r["slopes"] is not None], rng)
    if rows is not None:
        values = array(draft, rows["slopes"]).astype(np.float64)
        kind = str(rng.choice(["f8", "f4"]))
        with np.errstate(all="ignore"):
            single = np.nan_to_num(_mixed(values, rng), nan=np.nan, posinf=1e30, neginf=-1e30)
            clipped = np.clip(single, -3e38, 3e38) if kind == "f4" else single
        rows["slopes"] = draft.payload.put(clipped, kind)


def curvatures(draft: Draft, rng: Rng) -> None:
    rows = _any([r for r in _rows(draft) if r.get("curvatures") is not None], rng)
    if rows is not None:
        values = array(draft, rows["curvatures"]).astype(np.float64)
        with np.errstate(all="ignore"):
            mixed = np.nan_to_num(_mixed(values, rng) * 10.0 ** rng.integers(-4, 4), nan=0.0)
        rows["curvatures"] = draft.payload.put(np.clip(np.abs(mixed), 0.0, 1e300), "f8")


def all_slopes(draft: Draft, rng: Rng) -> None:
    for _ in range(8):
        slopes(draft, rng)
        shared(draft, rng)


def shared(draft: Draft, rng: Rng) -> None:
    given = draft.header["shared"]
    at = [k for k, ref in enumerate(given) if ref is not None]
    k = _any(at, rng)
    if k is not None:
        given[k] = draft.payload.put(_mixed(array(draft, given[k]).astype(np.float64), rng))


def no_shared(draft: Draft, rng: Rng) -> None:
    draft.header["shared"] = [None] * len(draft.header["shared"])


def lanes(draft: Draft, rng: Rng) -> None:
    """Lines above and below exchanged, or told apart."""
    rows = _any([r for r in _rows(draft) if r["slopes"] is not None], rng)
    if rows is not None:
        values = array(draft, rows["slopes"]).astype(np.float64)
        rows["slopes"] = draft.payload.put(np.concatenate([values[:, :1], -values[:, :1]], 1))


def drop_steps(draft: Draft, rng: Rng) -> None:
    steps = draft.header["steps"]
    draft.header["steps"] = [s for s in steps if rng.random() < 0.5]


def drop_rows(draft: Draft, rng: Rng) -> None:
    step = _any(draft.header["steps"], rng)
    if step is not None:
        keep = rng.random(step["neuron"]["shape"][0]) < 0.5
        for name, kind in (("neuron", "u4"), ("side", "u1"), ("table", "u4")):
            step[name] = draft.payload.put(array(draft, step[name])[keep], kind)


def repeat(draft: Draft, rng: Rng) -> None:
    steps = draft.header["steps"]
    for step in list(steps):
        if rng.integers(2):
            steps.insert(steps.index(step), deepcopy(step))


def reorder(draft: Draft, rng: Rng) -> None:
    rng.shuffle(draft.header["steps"])


def sides(draft: Draft, rng: Rng) -> None:
    """Bounds above told as bounds below."""
    step = _any(draft.header["steps"], rng)
    if step is not None:
        step["side"] = draft.payload.put(1 - array(draft, step["side"]), "u1")


def neurons(draft: Draft, rng: Rng) -> None:
    """One neuron's rows told as another's."""
    step = _any(draft.header["steps"], rng)
    if step is not None:
        step["neuron"] = draft.payload.put(rng.permutation(array(draft, step["neuron"])), "u4")


def tables(draft: Draft, rng: Rng) -> None:
    rows = _any(_rows(draft), rng)
    values = array(draft, rows["table"]).copy()
    high = 1 if rows["slopes"] is None else rows["slopes"]["shape"][0] + int(rng.integers(2))
    values[rng.random(len(values)) < 0.5] = _any([NO_TABLE, int(rng.integers(high))], rng)
    rows["table"] = draft.payload.put(values, "u4")


def over(draft: Draft, rng: Rng) -> None:
    rows = _any(_rows(draft), rng)
    count = len(draft.header["sites"])
    choices = [
        rows["over"][1:],
        [*rows["over"], count - 1],
        list(range(count)),
        rows["over"][::-1],
        [],
    ]
    rows["over"] = _any(choices, rng)


def sites(draft: Draft, rng: Rng) -> None:
    """Other kinds, sizes or names of sites, or sites exchanged, dropped or twice."""
    given = draft.header["sites"]
    site = _any(given, rng)
    match int(rng.integers(6)):
        case 0:
            site["kind"] = str(rng.choice(["Relu", "Tanh", "Abs", "Product", "Max", "Sigmoid"]))
        case 1:
            site["size"] = max(1, site["size"] + int(rng.integers(-1, 2)))
        case 2:
            site["name"] = str(_any(given, rng)["name"])
        case 3:
            given.reverse()
            draft.header["shared"].reverse()
        case 4:
            given.pop()
            draft.header["shared"].pop()
        case _:
            given.append(dict(site))
            draft.header["shared"].append(None)


def a_number(draft: Draft, rng: Rng) -> None:
    """One number of the header is another."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            if isinstance(item, dict | list):
                walk(item)
            elif isinstance(item, int):
                places.append((value, key))

    walk(draft.header)
    owner, key = _any(places, rng)
    changes = [0, -1, 1, 2**31, 2**40, 2**63, owner[key] + 1, owner[key] + 8, owner[key] - 8]
    owner[key] = _any(changes, rng)


def a_reference(draft: Draft, rng: Rng) -> None:
    """Two fields of the header exchange their arrays."""
    region, final = draft.header["region"], draft.header["final"]
    owners = [(region, "centre"), (final, "table"), (final, "slopes")]
    owners += [(s, k) for s in draft.header["steps"] for k in ("neuron", "side", "table", "slopes")]
    owners += [(region, k) for k in ("scale", "ball", "lower", "upper") if region[k]]
    one, two = _any(owners, rng), _any(owners, rng)
    one[0][one[1]], two[0][two[1]] = two[0][two[1]], one[0][one[1]]


def a_field(draft: Draft, rng: Rng) -> None:
    """A field is gone, null, or of another type."""
    owner = _any([draft.header, draft.header["region"], draft.header["final"]], rng)
    key = _any(list(owner), rng)
    if rng.integers(3) == 0:
        del owner[key]
    else:
        owner[key] = _any([None, [], {}, "", 0, True, "0x0.0p+0", [[]]], rng)


def payload_bits(draft: Draft, rng: Rng) -> None:
    data = draft.payload.data
    for _ in range(int(rng.integers(1, 9))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))


def nudge(draft: Draft, rng: Rng) -> None:
    """A statement that is a little different: often as true, and not the one that was proved."""
    region, claim = draft.header["region"], draft.header["claim"]
    by = 1 + float(rng.choice([-1, 1])) * 2.0 ** -int(rng.integers(1, 53))
    centre = array(draft, region["centre"])
    match int(rng.integers(6)):
        case 0 | 1:
            region["radius"] = (float.fromhex(region["radius"]) * by).hex()
        case 2:
            moved = np.where(rng.random(centre.shape) < 0.3, centre * by, centre)
            region["centre"] = draft.payload.put(moved)
        case 3:
            width = 1 + (by - 1) * rng.random(centre.shape)
            given = region["scale"]
            region["scale"] = draft.payload.put(
                width if given is None else array(draft, given) * width
            )
        case 4:
            step = np.abs(rng.normal(size=centre.shape))
            region["lower"] = draft.payload.put(centre - step)
            region["upper"] = draft.payload.put(centre + step)
        case _:
            claim["others"] = claim["others"][:1]
            final = draft.header["final"]
            final["table"] = draft.payload.put(array(draft, final["table"])[:1], "u4")


CHANGES: dict[str, Change] = {
    "slopes": slopes,
    "all slopes": all_slopes,
    "curvatures": curvatures,
    "shared": shared,
    "no shared": no_shared,
    "lanes": lanes,
    "drop steps": drop_steps,
    "drop rows": drop_rows,
    "repeat": repeat,
    "reorder": reorder,
    "sides": sides,
    "neurons": neurons,
    "tables": tables,
    "over": over,
    "sites": sites,
    "a number": a_number,
    "a reference": a_reference,
    "a field": a_field,
    "payload bits": payload_bits,
    "nudge": nudge,
    "nudge again": nudge,
}
# Those that may hit the bytes of the statement.
OF_ANYTHING = ("a number", "a reference", "a field", "payload bits", "nudge", "nudge again")
OF_THE_PROOF = [name for name in CHANGES if name not in OF_ANYTHING]


UNREADABLE = (ValueError, TypeError, LookupError, AttributeError, AssertionError, StopIteration)

# -- bytes --------------------------------------------------------------------------------------


def noise(content: bytes, rng: Rng) -> tuple[str, bytes]:
    """A file with its bytes changed, and how.

    Earlier changes may have left a header that some kinds of noise cannot read; others can.
    """
    while True:
        name = str(rng.choice(list(NOISE)))
        try:
            return name, NOISE[name](content, rng)
        except UNREADABLE:
            continue


def _split(content: bytes) -> tuple[bytes, bytes]:
    (length,) = struct.unpack_from("<I", content, 8)
    return content[12 : 12 + length], zlib.decompress(content[20 + length :])


def _flip(content: bytes, rng: Rng) -> bytes:
    data = bytearray(content)
    for _ in range(int(rng.integers(1, 5))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    return bytes(data)


def _flip_header(content: bytes, rng: Rng) -> bytes:
    header, payload = _split(content)
    return seal(_flip(header, rng), payload)


def _digits(content: bytes, rng: Rng) -> bytes:
    """Digits of the header exchanged for others."""
    header, payload = _split(content)
    data = bytearray(header)
    places = [i for i, b in enumerate(data) if chr(b).isdigit()]
    for i in rng.choice(places, int(rng.integers(1, 4))):
        data[i] = ord("0") + int(rng.integers(10))
    return seal(bytes(data), payload)


def _cut(content: bytes, rng: Rng) -> bytes:
    return content[: int(rng.integers(len(content)))]


def _tail(content: bytes, rng: Rng) -> bytes:
    return content + rng.bytes(int(rng.integers(1, 64)))


def _header_length(content: bytes, rng: Rng) -> bytes:
    (length,) = struct.unpack_from("<I", content, 8)
    new = int(rng.choice([0, length - 1, length + 1, length + 8, 2**32 - 1, 2**24, 2**31]))
    return content[:8] + struct.pack("<I", new) + content[12:]


def _payload_length(content: bytes, rng: Rng) -> bytes:
    (length,) = struct.unpack_from("<I", content, 8)
    (size,) = struct.unpack_from("<Q", content, 12 + length)
    new = int(rng.choice([0, size - 8, size - 1, size + 1, size + 8, 2**30, 2**40]))
    return content[: 12 + length] + struct.pack("<Q", new) + content[20 + length :]


def _twice(content: bytes, rng: Rng) -> bytes:
    """A key twice, with a value that says more or less."""
    header, payload = _split(content)
    found = json.loads(header)
    key = str(rng.choice(["radius", "label", "others", "norm", "format", "sha256"]))
    owner = next(o for o in (found["region"], found["claim"], found, found["model"]) if key in o)
    old = f'"{key}": {json.dumps(owner[key])}'.encode()
    other = {"radius": '"0x1.0p+3"', "label": "0", "others": "[1]", "norm": '"inf"'}.get(key, "1")
    new = f'"{key}": {other}'.encode()
    pair = [old, new] if rng.integers(2) else [new, old]
    assert header.count(old) == 1
    return seal(header.replace(old, b", ".join(pair)), payload)


def _literal(content: bytes, rng: Rng) -> bytes:
    """Numbers that JSON has no word for, or spells in several ways."""
    header, payload = _split(content)
    found = json.loads(header)
    number = str(found["claim"]["label"])
    new = str(rng.choice(["NaN", "Infinity", "-Infinity", f"{number}.0", f"{number}e0", "1e999"]))
    return seal(header.replace(b'"label": ' + number.encode(), f'"label": {new}'.encode()), payload)


def _spelling(content: bytes, rng: Rng) -> bytes:
    """The radius in another spelling, or a number that float.hex would not write."""
    header, payload = _split(content)
    found = json.loads(header)
    old = found["region"]["radius"]
    spellings = [old.upper(), f" {old}", f"+{old}", old.replace("0x", ""), f"{old}0", "0x1p+1"]
    spellings += ["-0x0.0p+0", "0x0.0000000000001p-1022", "inf", "nan"]
    spellings.append(str(float.fromhex(old)))
    found["region"]["radius"] = str(rng.choice(spellings))
    return seal(json.dumps(found).encode(), payload)


def _streams(content: bytes, rng: Rng) -> bytes:
    """The payload as two streams, or as a raw one."""
    header, payload = _split(content)
    half = len(payload) // 2
    packed = zlib.compress(payload[:half]) + zlib.compress(payload[half:])
    if rng.integers(2):
        packed = zlib.compress(payload)[2:-4]
    sizes = struct.pack("<I", len(header)), struct.pack("<Q", len(payload))
    return b"FROWNC01" + sizes[0] + header + sizes[1] + packed


NOISE: dict[str, Callable[[bytes, Rng], bytes]] = {
    "bits": _flip,
    "bits of the header": _flip_header,
    "digits": _digits,
    "cut": _cut,
    "tail": _tail,
    "length of the header": _header_length,
    "length of the payload": _payload_length,
    "a key twice": _twice,
    "literals": _literal,
    "spelling": _spelling,
    "streams": _streams,
}

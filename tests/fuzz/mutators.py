"""Changes that keep a file's outer form, so that the fuzzer gets past it.

Every function takes a file, a generator and `bytewise`, a mutation of plain bytes that
the fuzzer guides, and returns another file.
"""

from __future__ import annotations

import io
import json
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import onnx
from google.protobuf.message import DecodeError

Bytewise = Callable[[bytes], bytes]
Mutator = Callable[[bytes, random.Random, Bytewise], bytes]

NUMBERS = [0, 1, -1, 2, 3, 5, 7, 8, 16, 255, 2**15, 2**20, 2**31 - 1, 2**31, 2**40, -(2**31), 2**63]
FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e-38, 3e38, -3e38, float("inf"), float("nan"), 1e10]


def certificate(data: bytes, rng: random.Random, bytewise: Bytewise) -> bytes:
    """Of the header or of the payload, sealed again."""
    try:
        (length,) = struct.unpack_from("<I", data, 9)
        header, packed = data[13 : 13 + length], data[21 + length :]
        payload = zlib.decompress(packed)
        found = json.loads(header)
    except (struct.error, zlib.error, ValueError, RecursionError):
        return bytewise(data)
    match rng.randrange(6):
        case 0:
            return bytewise(data)
        case 1:
            header = bytewise(header)
        case 2:
            payload = bytewise(payload)
        case _:
            for _ in range(rng.randint(1, 3)):
                _tree(found, rng)
            header = json.dumps(found).encode()
    sizes = struct.pack("<I", len(header)), struct.pack("<Q", len(payload))
    body = b"FROWNC01" + sizes[0] + header + sizes[1] + zlib.compress(payload, 1)
    return bytes([rng.randrange(3) if rng.random() < 0.05 else data[0]]) + body


def _tree(root: Any, rng: random.Random) -> None:
    """One value of a JSON tree is another, gone, twice, or changed places."""
    places: list[tuple[Any, Any]] = []

    def walk(value: Any) -> None:
        keys = list(value) if isinstance(value, dict) else range(len(value))
        for key in keys:
            places.append((value, key))
            if isinstance(value[key], dict | list):
                walk(value[key])

    if isinstance(root, dict | list):
        walk(root)
    if not places:
        return
    owner, key = rng.choice(places)
    other, that = rng.choice(places)
    match rng.randrange(6):
        case 0:
            owner[key], other[that] = other[that], owner[key]
            if _circular(root):
                owner[key], other[that] = other[that], owner[key]
        case 1:
            del owner[key]
        case 2 if isinstance(owner, list):
            owner.append(owner[key])
        case 3 if isinstance(owner[key], int):
            owner[key] += rng.choice([-8, -1, 1, 8])
        case 4 if isinstance(owner[key], str):
            owner[key] = rng.choice(["inf", "1", "2", "0x1p+0", "0x1.8p+0", "", "f2", "u1", "nan"])
        case _:
            owner[key] = rng.choice([None, True, "", [], {}, 1.5, *NUMBERS])


def _circular(root: Any) -> bool:
    try:
        json.dumps(root)
    except (ValueError, RecursionError):
        return True
    return False


def network(data: bytes, rng: random.Random, bytewise: Bytewise) -> bytes:
    """Of an ONNX file's nodes, attributes, weights, shapes and names."""
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
        if not proto.graph.node or rng.random() < 0.1:
            return bytewise(data)
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            _graph(proto, rng, bytewise)
        return proto.SerializeToString()
    except (DecodeError, IndexError, OverflowError, TypeError, ValueError):
        return bytewise(data)


_OPERATORS = """
Relu LeakyRelu PRelu Sigmoid Tanh Softplus Abs HardSwish HardSigmoid Exp Log Sin Cos Atan Clip
Max Min Elu Selu Celu Pow Reciprocal Sqrt Mul Div Add Sub Neg Sum Mean Gelu Erf MaxPool
AveragePool GlobalMaxPool GlobalAveragePool ReduceMax ReduceMin ReduceSum ReduceMean
ReduceLogSumExp Softmax LogSoftmax MatMul Gemm Conv ConvTranspose BatchNormalization
LayerNormalization InstanceNormalization GroupNormalization LRN RNN LSTM GRU Reshape Flatten
Squeeze Unsqueeze Transpose Concat Split Slice Gather Pad Expand Tile Identity Dropout Cast
Constant ConstantOfShape Shape Range Where Einsum CumSum Resize DepthToSpace SpaceToDepth
Upsample TopK Loop If Equal Not Floor Swish ReverseSequence GatherND ScatterND Trilu
"""
_ATTRIBUTES = """
axis axes alpha beta gamma transA transB kernel_shape strides pads dilations group auto_pad
ceil_mode count_include_pad storage_order perm keepdims epsilon hidden_size direction layout
linear_before_reset activations clip output_shape output_padding mode value split to allowzero
starts ends num_outputs batch_dims exclusive reverse equation blocksize min max largest
"""
OPERATORS, ATTRIBUTES = _OPERATORS.split(), _ATTRIBUTES.split()


def _graph(proto: onnx.ModelProto, rng: random.Random, bytewise: Bytewise) -> None:
    graph = proto.graph
    node = rng.choice(graph.node)
    names = [*(t.name for t in graph.initializer), *(o for n in graph.node for o in n.output), "x"]
    match rng.randrange(12):
        case 0:
            node.op_type = rng.choice(OPERATORS)
        case 1 if node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice([*names, ""])
        case 2:
            node.input.append(rng.choice([*names, ""]))
        case 3 if node.input:
            del node.input[rng.randrange(len(node.input))]
        case 4 | 5:
            _attribute(node, rng)
        case 6 | 7 if graph.initializer:
            _tensor(rng.choice(graph.initializer), rng, bytewise)
        case 8:
            dims = graph.input[0].type.tensor_type.shape.dim if graph.input else []
            if dims:
                dims[rng.randrange(len(dims))].dim_value = rng.choice([*range(8), *NUMBERS[:-1]])
        case 9:
            proto.opset_import[0].version = rng.choice([1, 7, 8, 9, 11, 13, 17, 18, 21, 24, 99])
        case 10:
            graph.node.add().CopyFrom(node)
            fresh = graph.node[-1]
            fresh.op_type = rng.choice(OPERATORS)
            fresh.input[:] = [rng.choice(names) for _ in fresh.input]
            fresh.output[:] = [f"{o}_" for o in fresh.output]
            graph.output[0].name = fresh.output[0] if fresh.output else "y"
        case _:
            graph.output[0].name = rng.choice(names)


def _attribute(node: onnx.NodeProto, rng: random.Random) -> None:
    small = [-2, -1, *range(6)]
    value: Any = rng.choice(
        [
            rng.choice(small),
            rng.choice([k for k in NUMBERS if abs(k) < 2**63]),
            rng.choice(FLOATS),
            [rng.choice(small) for _ in range(rng.randrange(1, 6))],
            [rng.choice([*small, 2**20, 2**40]) for _ in range(2)],
            rng.choice(["SAME_UPPER", "VALID", "NOTSET", "bidirectional", "reverse", "", "linear"]),
            ["Relu", "Tanh", "Sigmoid"],
        ]
    )
    if node.attribute and rng.random() < 0.6:
        old = rng.choice(node.attribute)
        name = old.name
        node.attribute.remove(old)
        if rng.random() < 0.1:
            return
    else:
        name = rng.choice(ATTRIBUTES)
    node.attribute.append(onnx.helper.make_attribute(name, value))


def _tensor(tensor: onnx.TensorProto, rng: random.Random, bytewise: Bytewise) -> None:
    match rng.randrange(6):
        case 0 if tensor.dims:
            tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice([*range(6), 2**20, 2**40, -1])
        case 1:
            tensor.data_type = rng.randrange(24)
        case 2:
            tensor.raw_data = bytewise(tensor.raw_data)
        case 3 if tensor.data_type == onnx.TensorProto.INT64 and tensor.raw_data:
            count = len(tensor.raw_data) // 8
            values = list(struct.unpack(f"<{count}q", tensor.raw_data[: 8 * count]))
            values[rng.randrange(count)] = rng.choice([-2, *range(9), *NUMBERS[:-1]])
            tensor.raw_data = struct.pack(f"<{count}q", *values)
        case 4 if tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.DOUBLE):
            code, size = ("f", 4) if tensor.data_type == onnx.TensorProto.FLOAT else ("d", 8)
            if len(tensor.raw_data) >= size:
                at = size * rng.randrange(len(tensor.raw_data) // size)
                new = struct.pack(f"<{code}", rng.choice(FLOATS))
                tensor.raw_data = tensor.raw_data[:at] + new + tensor.raw_data[at + size :]
        case _ if tensor.dims:
            dims = list(tensor.dims)
            rng.shuffle(dims)
            tensor.dims[:] = rng.choice([dims, dims[:-1], [*dims, 1], [1, *dims]])


def table(data: bytes, rng: random.Random, bytewise: Bytewise) -> bytes:
    """Of the arrays inside of a .npz file; other files byte by byte."""
    if data[1:3] != b"PK" or rng.random() < 0.3:
        return bytewise(data)
    try:
        with zipfile.ZipFile(io.BytesIO(data[1:])) as old:
            members = {name: old.read(name) for name in old.namelist()}
        chosen = rng.choice(list(members))
        members[chosen] = bytewise(members[chosen])
        if rng.random() < 0.1:
            members[rng.choice(["y.npy", "target.npy", "x", "x.npy", "../x.npy"])] = members[chosen]
        file = io.BytesIO()
        packing = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
        with zipfile.ZipFile(file, "w", packing) as new:
            for name, content in members.items():
                new.writestr(name, content)
        return data[:1] + file.getvalue()
    except Exception:  # what is no archive any more
        return bytewise(data)


def query(data: bytes, rng: random.Random, bytewise: Bytewise) -> bytes:
    """Mutate the words of a VNN-LIB query: dropped, doubled, exchanged or replaced."""
    words = re.findall(rb"[()]|[^\s()]+", data)
    if len(words) < 2 or rng.random() < 0.3:
        return bytewise(data)
    for _ in range(rng.randint(1, 4)):
        a, b = sorted(rng.randrange(len(words)) for _ in range(2))
        some = [
            b"(",
            b")",
            b"or",
            b"and",
            b"+",
            b"*",
            b"/",
            b"-",
            b"=",
            b"X_0",
            b"Y_0",
            b"A[0,1]",
            b"B[1]",
            b"==",
            b"!=",
            b"<",
            b"1e-7",
            b"0",
        ]
        change = rng.choice([[], words[a:b] * rng.randint(1, 3), [rng.choice(some)]])
        words[a : a + rng.randint(0, 2)] = change
        words = words[:4000] or [b"("]
    return b" ".join(words)

"""OpenVINO's CPU plug-in: a stateful ScaledDotProductAttention, whose step also encodes and appends the new token. `turbo4` and `turbo3`
are its TurboQuant."""

import numpy as np
import openvino as ov
import task
from openvino import PartialShape, Type
from openvino import opset13 as op
from openvino.op.util import Variable, VariableInfo

# Payload plus, per vector, a scale and a zero point, or the norm of TurboQuant. From its sources, not measured.
BYTES = {"bf16": 512, "u8": 272, "u4": 144, "turbo4": 136, "turbo3": 104}


def model():
    heads, dim = task.KV_HEADS, task.DIM
    shapes = {"q": [-1, -1, -1, dim], "k": [-1, heads, -1, dim], "v": [-1, heads, -1, dim]}
    inputs = {name: op.parameter(PartialShape(shape), Type.f32, name=name) for name, shape in shapes.items()}
    inputs["beam_idx"] = op.parameter(PartialShape([-1]), Type.i32, name="beam_idx")
    for name, node in inputs.items():
        node.output(0).get_tensor().set_names({name})
    zero, batch = op.constant(0, Type.i32), op.shape_of(inputs["k"], "i32")
    batch = op.gather(batch, op.constant([0], Type.i32), zero)
    whole, states = [], []
    for name in ("k", "v"):
        info = VariableInfo()
        info.data_shape, info.data_type, info.variable_id = PartialShape(shapes[name]), Type.f32, f"past_{name}"
        variable = Variable(info)
        empty = op.concat([batch] + [op.constant([n], Type.i32) for n in (heads, 0, dim)], 0)
        past = op.read_value(op.broadcast(op.constant(0.0, Type.f32), empty), variable)
        # Only this form, with constants for the shape, becomes the plug-in's own node; other forms are 30 times slower.
        joined = op.concat([op.gather(past, inputs["beam_idx"], zero), inputs[name]], 2)
        states.append(op.assign(joined, variable))
        group = op.constant([1, 1, task.HEADS // heads, 1, 1], Type.i32)
        repeated = op.broadcast(op.unsqueeze(joined, op.constant(2, Type.i32)), group, None, "BIDIRECTIONAL")
        whole.append(op.reshape(repeated, op.constant([0, task.HEADS, -1, dim], Type.i32), True))
    attention = op.scaled_dot_product_attention(inputs["q"], *whole, causal=False)
    return ov.Model([op.result(attention)], states, list(inputs.values()), "step")


def engine(kind, q, k, v, threads):
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": "1", "PERFORMANCE_HINT": "LATENCY"}
    settings["INFERENCE_PRECISION_HINT"] = "bf16"
    for side in ("KEY", "VALUE"):
        if kind.startswith("turbo"):
            settings[f"{side}_CACHE_QUANT_ALG"] = "TURBO"
        settings[f"{side}_CACHE_PRECISION"] = kind.replace("turbo", "u")
    request = ov.Core().compile_model(model(), "CPU", settings).create_infer_request()
    request.reset_state()
    beam = np.zeros(1, np.int32)
    # All but the newest token at once. It needs the same number of queries as keys; the results of these queries are dropped.
    past_k, past_v = k[None, :, :-1], v[None, :, :-1]
    request.infer({"q": past_k * 0.05, "k": past_k, "v": past_v, "beam_idx": beam})
    given = {"q": q[None, :, None], "k": k[None, :, -1:], "v": v[None, :, -1:], "beam_idx": beam}
    for name, array in given.items():
        request.set_tensor(name, ov.Tensor(np.ascontiguousarray(array)))

    def step():
        request.infer()
        return request.get_output_tensor(0).data

    return step, BYTES[kind]


task.main(engine)

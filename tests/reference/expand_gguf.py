"""Writes the same model with f32 weights, for any type of weights in the file.

usage: expand_gguf.py MODEL.gguf OUT.gguf      (needs the package gguf)

With quantised weights llama.cpp rounds activations to 8 bits, which changes logits more than a cache of 8 bits does. To measure only
caches, give it f32 weights.
"""

import os
import sys

import gguf
import numpy as np

TYPES = gguf.GGUFValueType


def copy_fields(reader, writer):
    for field in reader.fields.values():
        # The writer itself writes counts and the architecture.
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        kind = field.types[0]
        items = field.types[-1] if kind == TYPES.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=items)


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    part = sys.argv[2] + ".part"
    writer = gguf.GGUFWriter(part, reader.get_field("general.architecture").contents())
    copy_fields(reader, writer)
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        writer.add_tensor(tensor.name, values.reshape(tuple(tensor.shape)[::-1]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(part, sys.argv[2])


main()

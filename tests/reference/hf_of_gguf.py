"""Writes the model of a GGUF file as a folder of Transformers, with f32 weights.

usage: hf_of_gguf.py MODEL.gguf FOLDER      (needs the packages transformers, gguf and accelerate)

Serving engines take such folders, and the package index has the model only as GGUF.
"""

import os
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    file, folder = map(Path, sys.argv[1:])
    given = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    read = AutoModelForCausalLM.from_pretrained(**given, dtype=torch.float32)
    # What was read from a GGUF file counts as quantised, and is not written as it is.
    del read.config.quantization_config
    model = AutoModelForCausalLM.from_config(read.config)
    model.load_state_dict(read.state_dict())
    part = f"{folder}.part"
    model.save_pretrained(part)
    AutoTokenizer.from_pretrained(**given).save_pretrained(part)
    os.replace(part, folder)


if __name__ == "__main__":
    main()

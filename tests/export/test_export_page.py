"""docs/export.md: its commands and its code work as they are written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/export.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def test_the_commands_write_what_the_page_says(tmp_path, monkeypatch, pmtl_command):
    monkeypatch.chdir(tmp_path)
    (commands,) = blocks("bash")
    for line in commands.splitlines():
        done = pmtl_command(*shlex.split(line, comments=True)[1:])
        assert done.status == 0, (line, done.err)
    assert {file.name for file in Path("h003").iterdir()} == {
        *("model.onnx", "model.json", "schema.json", "README.md")
    }
    assert {file.name for file in Path("clients").iterdir()} == {
        *("models", "index.json", "model.json", "schema.json", "README.md")
    }
    assert Path("shared/model.pt2").is_file()
    assert len(list(Path("clients/models").glob("*.safetensors"))) == 200


def test_the_python_code_works_as_pasted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    exec(compile(code, "export.md", "exec"), {})
    file, apart = capsys.readouterr().out.split()
    assert Path("client-7", file).is_file()
    assert float(apart) < 1e-4

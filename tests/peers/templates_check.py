"""Chat templates of released models: the prompts that transformers gives (by the hashes of tests/golden/chat_templates.json), and what is trained."""
import os
import pathlib
import sys

import qeng
from peers import check, row

with check("prompts of released chat templates"):
    os.environ["QENG_TEMPLATES"] = str(pathlib.Path(sys.prefix) / "templates")
    row(qeng.run("tests/lua/chat_templates_test.lua").strip())
with check("calls of tools as released chat templates write them"):
    row(qeng.run("tests/lua/tool_templates_test.lua").strip())

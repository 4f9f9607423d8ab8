"""What griffe has to be told of the extension's stubs."""

import copy
from typing import Any

from griffe import Class, Extension, Function


class NewIsInit(Extension):
    """Classes in Rust are made by `__new__`: its parameters are those of the class."""

    def on_class(self, *, cls: Class, **_: Any) -> None:
        made_by = cls.members.get("__new__")
        if isinstance(made_by, Function) and "__init__" not in cls.members:
            init = copy.copy(made_by)
            init.name = "__init__"
            cls.set_member("__init__", init)

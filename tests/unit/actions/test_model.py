"""Values of actions (services/actions/model.py)."""

from __future__ import annotations

from raylay.services.actions.model import ActionModule


def test_an_option_that_is_given_twice_has_all_its_texts_and_a_last_one() -> None:
    use = ActionModule("do", "translate-data", (("Case", "a=b"), ("Data", "x"), ("Case", "c=d")))
    assert use.every("Case") == ("a=b", "c=d")
    assert use.option("Case") == "c=d"
    assert use.option("Default", "none") == "none"
    assert use.every("Value") == ()

"""What is known of where names come from."""

from xla_nb.program.origins import star_names


def test_star_names_are_known_only_for_loaded_modules():
    assert "join" in (star_names("os.path") or set())
    assert star_names("not.loaded") is None

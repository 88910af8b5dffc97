"""The tests of the tuner."""

import pytest

pytest.register_assert_rewrite("tuner.testing")

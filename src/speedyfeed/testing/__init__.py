"""Contracts that every encoder and index fulfils, for tests of your own.

Subclass a contract in a test file and give it its fixture; pytest collects the inherited tests:

    class TestMyUserEncoder(UserEncoderContract):
        @pytest.fixture
        def encoder(self):
            return MyUserEncoder(dim=12)
"""

from speedyfeed.testing.indexes import IndexContract
from speedyfeed.testing.news import NewsEncoderContract
from speedyfeed.testing.users import UserEncoderContract

__all__ = ["IndexContract", "NewsEncoderContract", "UserEncoderContract"]

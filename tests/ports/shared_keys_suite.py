"""What every store of shared keys must do. Inherit `SharedKeysSuite` and give the fixtures of the subclass.

`keys` and `others` are two processes' views of one store.
"""

from __future__ import annotations

import asyncio

from toolhub_service.domain.ports import SharedKeys

A, B = bytes(range(32)), bytes(range(1, 33))


class SharedKeysSuite:
    async def test_the_first_key_of_a_name_is_the_key_of_all(self, keys: SharedKeys, others: SharedKeys) -> None:
        assert await keys.agree("plan", A) == A
        assert await others.agree("plan", B) == A
        assert await keys.agree("plan", B) == A

    async def test_each_name_has_its_own_key(self, keys: SharedKeys, others: SharedKeys) -> None:
        assert await keys.agree("plan", A) == A
        assert await others.agree("other", B) == B

    async def test_processes_that_start_at_once_agree(self, keys: SharedKeys, others: SharedKeys) -> None:
        offered = [bytes([number]) * 32 for number in range(20)]
        agreed = await asyncio.gather(
            *((keys, others)[number % 2].agree("plan", key) for number, key in enumerate(offered))
        )
        assert len(set(agreed)) == 1
        assert agreed[0] in offered

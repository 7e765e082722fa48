"""Who has synchronised with whom: vector clocks of warps, kept for all resident warps at once.

Time is one counter that grows with every act of synchronisation. An access to memory is stamped
with the time and with who did it; `seen[view, column]` says up to which time the accesses of
another warp (a column) have happened before anything that a warp (a view) does now. Two accesses
race if neither side has seen the other's stamp.

Columns are the warps of a cluster and one more, the asynchronous agent that carries out bulk
copies: what it wrote is seen through the mbarrier that it completed. In a kernel whose CTAs
synchronise through global memory, columns are the warps of the whole batch; in others no two
clusters are ever ordered. Two more sets of clocks, of kinds `PROXY` and `GLOBAL_PROXY`, say up to
which time accesses to shared and to global memory have also been handed to the asynchronous proxy
by a `fence.proxy.async` of that space. They travel along with the first through every barrier.

Lanes of one warp are ordered by `bar.warp.sync` and barriers alone. What only some lanes of a warp
did, an elected lane's arrival or wait, say, is kept apart from what all did:
- a warp has two views: what all lanes have seen, and what the lanes in `ahead` have seen besides;
- beside `seen`, `lane_seen` says up to which time the accesses of the lanes `lane_mask` are seen.
- what some lanes have handed to the asynchronous proxy holds for them alone, until the warp meets.
Where several such sets would be needed they are merged: that may hide a race but never invents one.

Invariant: `seen` never falls; a stamp is greater than every `seen` recorded before it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from aotc.verify.arrays import any_in_rows, reduce_or, reshape
from aotc.verify.emulator.errors import Misuse

Ints: TypeAlias = npt.NDArray[np.int64]
Lanes: TypeAlias = "slice | Ints"

GENERIC, PROXY, GLOBAL_PROXY = range(3)
PROXIES = (PROXY, GLOBAL_PROXY)
_KINDS = (GENERIC, *PROXIES)

# A stamp, from the top: asynchronous, time, column, scope, lane, number of the instruction. Stamps of
# the asynchronous agent are above all times, so that they never pass for seen by mistake.
NUMBER_BITS = 20
_LANE_SHIFT = NUMBER_BITS
_SCOPE_SHIFT = _LANE_SHIFT + 5
_SCOPE_MASK = 3
_COLUMN_SHIFT = _SCOPE_SHIFT + 2
_COLUMN_MASK = (1 << 10) - 1
_TIME_SHIFT = _COLUMN_SHIFT + 10
_WHO = _COLUMN_MASK << _COLUMN_SHIFT | 31 << _LANE_SHIFT
_BELOW_TIME = (1 << _TIME_SHIFT) - 1
_ASYNC = 1 << 62
_TIME_END = (_ASYNC >> _TIME_SHIFT) - 1

_ALL_LANES = 0xFFFFFFFF
_LANES = np.arange(32, dtype=np.uint32)

WEAK, CTA, CLUSTER, GPU = range(4)
"""How strong an access is: not at all, or among the threads of a scope; GPU is the system, too."""


class Clocks:
    """Hold what each of many views or tokens has seen: arrays of (kinds, rows, columns)."""

    def __init__(self, rows: int, columns: int) -> None:
        shape = (len(_KINDS), rows, columns)
        self.seen = np.full(shape, _BELOW_TIME, np.int64)  # unwritten bytes, stamp 0, are seen
        self.lane_mask = np.zeros(shape, np.uint32)
        self.lane_seen = np.zeros(shape, np.int64)

    def add_rows(self, count: int) -> Ints:
        """Append rows that have seen nothing; return their numbers."""
        _, old, columns = self.seen.shape
        more = Clocks(count, columns)
        self.seen = np.concatenate((self.seen, more.seen), axis=1)
        self.lane_mask = np.concatenate((self.lane_mask, more.lane_mask), axis=1)
        self.lane_seen = np.concatenate((self.lane_seen, more.lane_seen), axis=1)
        return np.arange(old, old + count)

    def clear(self, rows: Ints) -> None:
        """Forget what some rows have seen."""
        self.seen[:, rows] = _BELOW_TIME
        self.lane_mask[:, rows] = 0
        self.lane_seen[:, rows] = 0

    def copy(self, rows: Ints, source: Clocks, source_rows: Ints) -> None:
        """Let each of `rows` have seen what its row of `source` has, and no more."""
        self.seen[:, rows] = source.seen[:, source_rows]
        self.lane_mask[:, rows] = source.lane_mask[:, source_rows]
        self.lane_seen[:, rows] = source.lane_seen[:, source_rows]

    def merge(self, rows: Ints, source: Clocks, source_rows: Ints) -> None:
        """Let each of `rows`, which may repeat, also have seen what its row of `source` has."""
        lane_mask = source.lane_mask[:, source_rows]
        some = bool(lane_mask.any())
        if bool((rows[1:] > rows[:-1]).all()):
            self.seen[:, rows] = np.maximum(self.seen[:, rows], source.seen[:, source_rows])
            if some:
                lane_seen = np.maximum(self.lane_seen[:, rows], source.lane_seen[:, source_rows])
                self.lane_seen[:, rows] = lane_seen
                self.lane_mask[:, rows] |= lane_mask
        else:
            for kind in _KINDS:
                np.maximum.at(self.seen[kind], rows, source.seen[kind, source_rows])
                if some:
                    lane_seen = source.lane_seen[kind, source_rows]
                    np.maximum.at(self.lane_seen[kind], rows, lane_seen)
                    np.bitwise_or.at(self.lane_mask[kind], rows, lane_mask[kind])
        if some:
            self.drop_surpassed(rows)

    def drop_surpassed(self, rows: Ints) -> None:
        """Forget single lanes of which no more is seen than of their warp."""
        self.lane_mask[:, rows] *= self.lane_seen[:, rows] > self.seen[:, rows]


class Order:
    """Hold the clocks of the warps of a batch; warps and lanes are numbered through the batch.

    `whole` keeps clocks of the warps of all clusters for each warp, not only those of its own.
    """

    def __init__(
        self,
        num_ctas: int,
        warps_per_cta: int,
        cluster_size: int = 1,
        *,
        whole: bool = False,
    ) -> None:
        num_warps = num_ctas * warps_per_cta
        self.cluster_warps = cluster_size * warps_per_cta
        self.warps_per_cta = warps_per_cta
        self.whole = whole and num_warps > self.cluster_warps
        self.async_column = num_warps if self.whole else self.cluster_warps
        self.columns = self.async_column + 1
        self.now = 1
        self.views = Clocks(2 * num_warps, self.columns)  # rows 2 w and 2 w + 1 are warp w's
        self.ahead = np.zeros(num_warps, np.uint32)  # lanes for which row 2 w + 1 holds
        # Up to when a view has seen everyone of its cluster: a cheap first test.
        self.floor = np.full(2 * num_warps, _BELOW_TIME, np.int64)
        self.lowest_floor = _BELOW_TIME
        # What lanes have handed to the asynchronous proxy since their warp met: of their own, up to
        # when (0: nothing), and what they had seen, which the clocks hold for lanes in `handed`.
        self._handed_at = np.zeros((len(_KINDS), num_warps * 32), np.int64)
        self.handed = np.zeros(num_warps, np.uint32)
        self._handed_clocks = Clocks(num_warps, self.columns)
        self._some_handed = False
        self._fenced = False  # whether the clocks of proxies say anything yet
        self._some_lanes = False  # whether single lanes have been told apart yet
        self._some_ahead = False
        lanes = np.arange(num_warps * 32, dtype=np.int64)
        warps = np.arange(num_warps, dtype=np.int64)
        self._warp_column = warps % self.async_column
        self._column = self._warp_column[lanes >> 5]
        self._plane = (lanes >> 5) % self.cluster_warps
        # The columns of each view's own cluster.
        first = (warps // self.cluster_warps * self.cluster_warps).repeat(2)
        self._own_columns = first[:, None] + np.arange(self.cluster_warps)
        self._signature = self._column << _COLUMN_SHIFT | (lanes & 31) << _LANE_SHIFT
        self._view_of_lane = (lanes >> 5) * 2

    # ---- stamps -----------------------------------------------------------------------------

    def stamps(self, lanes: Lanes, number: int | Ints, scope: int = WEAK) -> Ints:
        """Return the stamps of accesses that lanes do now, by instructions' numbers: (n,)."""
        return self._signature[lanes] | (
            self.now << _TIME_SHIFT | number & (1 << NUMBER_BITS) - 1 | scope << _SCOPE_SHIFT
        )

    def async_stamp(self, number: int, scope: int = WEAK) -> int:
        """Return the stamp of what the asynchronous agent does now."""
        column = self.async_column << _COLUMN_SHIFT | scope << _SCOPE_SHIFT
        return _ASYNC | self.now << _TIME_SHIFT | column | number & (1 << NUMBER_BITS) - 1

    def limit(self) -> int:
        """Return the greatest stamp that can be made now, but by the asynchronous agent."""
        return self.now << _TIME_SHIFT | _BELOW_TIME

    def columns_of(self, lanes: Lanes) -> Ints:
        """Return the columns of lanes' warps: (n,)."""
        return self._column[lanes]

    def columns_of_warps(self, warps: Ints) -> Ints:
        """Return the columns of warps, in the same shape."""
        return self._warp_column[warps]

    def planes_of(self, lanes: Lanes) -> Ints:
        """Return the places of lanes' warps in their clusters: (n,)."""
        return self._plane[lanes]

    def views_of(self, lanes: Lanes) -> Ints:
        """Return the views of lanes, rows of `views`: (n,)."""
        views = self._view_of_lane[lanes]
        if not self._some_ahead:
            return views
        numbers = lanes_array(lanes, len(self._view_of_lane))
        return views + (self.ahead[views >> 1] >> (numbers & 31).astype(np.uint32) & 1)

    def unseen(self, lanes: Lanes, stamps: Ints) -> tuple[Ints, Ints] | None:
        """Return where among stamps (n, k) are those that lanes (n,) have not seen, if any.

        This is `unordered` of accesses by their own clusters, quick when barriers or the lane
        itself order everything.
        """
        highest = int(stamps.max()) if stamps.size else 0
        if highest <= self.lowest_floor:
            return None
        views = self.views_of(lanes)
        agent = self.views.seen[GENERIC, views, self.async_column] if highest >= _ASYNC else None
        if agent is not None and highest <= int(agent.min()) and int(stamps.min()) >= _ASYNC:
            return None
        late = stamps > self.floor[views][:, None]
        if agent is not None:
            late &= (stamps < _ASYNC) | (stamps > agent[:, None])
        if not late.any():
            return None
        late &= (stamps ^ self._signature[lanes][:, None]) & _WHO != 0
        suspect = np.flatnonzero(any_in_rows(late))
        if not suspect.size:
            return None
        numbers = lanes_array(lanes, len(self._view_of_lane))[suspect]
        rows, which = np.nonzero(self.unordered(numbers, stamps[suspect]))
        return (suspect[rows], which) if rows.size else None

    def have_met(self, lanes: Lanes, limits: Ints) -> bool:
        """Return whether lanes (n,) have seen what all of their clusters did up to limits (n,)."""
        return bool((limits <= self.floor[self._view_of_lane[lanes]]).all())

    def have_seen_all(self, lanes: Ints, stamps: Ints) -> bool:
        """Return whether all lanes of lanes' warps (n,) have seen what is stamped (n, k).

        Neither what lanes did themselves nor what only some have seen is taken into account.
        """
        views = self._view_of_lane[lanes]
        agent = self.views.seen[GENERIC, views, self.async_column][:, None]
        late = stamps > self.floor[views][:, None]
        return not (late & ((stamps < _ASYNC) | (stamps > agent))).any()

    def unordered(self, lanes: Ints, stamps: Ints, kind: int = GENERIC) -> npt.NDArray[np.bool_]:
        """Say which of the accesses stamped (n, k) lanes (n,) have not seen.

        Of kind PROXY or GLOBAL_PROXY: which have not been handed to the asynchronous proxy either;
        what the asynchronous agent wrote needs no handing over.
        """
        if kind != GENERIC and stamps.size and int(stamps.min()) >= _ASYNC:
            return np.zeros(stamps.shape, np.bool_)
        columns = stamps >> _COLUMN_SHIFT & _COLUMN_MASK
        cells = self.views_of(lanes)[:, None] * self.columns + columns
        views = self.views
        late = stamps > reshape(views.seen[kind], -1).take(cells)
        if kind == GENERIC:
            late &= (stamps ^ self._signature[lanes][:, None]) & _WHO != 0
        else:
            late &= columns != self.async_column
        if self._some_lanes or (kind != GENERIC and self._some_handed):
            rows, which = np.nonzero(late)
            if rows.size:
                late[rows, which] = self._are_late(
                    lanes[rows], stamps[rows, which], cells[rows, which], kind
                )
        return late

    def _are_late(self, lanes: Ints, stamps: Ints, cells: Ints, kind: int) -> npt.NDArray[np.bool_]:
        """Say which of stamps (n,), not seen with their warps, lanes (n,) have not seen by others.

        `cells` (n,) are where their views have what they have seen of the stamps' warps.
        """
        bit = (stamps >> _LANE_SHIFT & 31).astype(np.uint32)
        seen = np.zeros(len(stamps), np.bool_)
        if self._some_lanes:
            shown = reshape(self.views.lane_mask[kind], -1)[cells] >> bit & 1 != 0
            seen = shown & (stamps <= reshape(self.views.lane_seen[kind], -1)[cells])
        if kind != GENERIC and self._some_handed:
            seen |= self._are_handed(lanes, stamps, bit, kind)
        return ~seen

    def have_seen(self, warps: Ints, columns: Ints, limits: Ints) -> npt.NDArray[np.bool_]:
        """Say whether a lane of each warp (n,) has seen all that columns (n, k) did up to limits.

        Of a warp it need be one lane that is seen: that orders what whole warps do.
        """
        views = (2 * warps + (self.ahead[warps] != 0))[:, None]
        seen = self.views.seen[GENERIC, views, columns] >= limits
        if self._some_lanes:
            some = self.views.lane_mask[GENERIC, views, columns] != 0
            seen |= some & (self.views.lane_seen[GENERIC, views, columns] >= limits)
        return seen

    def _are_handed(
        self, lanes: Ints, stamps: Ints, bit: npt.NDArray[np.uint32], kind: int
    ) -> npt.NDArray[np.bool_]:
        """Say which of stamps (n,), by lanes `bit` of warps, lanes (n,) have handed over themselves."""
        warps, columns, clocks = lanes >> 5, columns_in(stamps), self._handed_clocks
        itself = (stamps ^ self._signature[lanes]) & _WHO == 0
        itself &= stamps <= self._handed_at[kind, lanes]
        told = self.handed[warps] >> (lanes & 31).astype(np.uint32) & 1 != 0
        shown = clocks.lane_mask[kind, warps, columns] >> bit & 1 != 0
        shown &= stamps <= clocks.lane_seen[kind, warps, columns]
        shown |= stamps <= clocks.seen[kind, warps, columns]
        return itself | told & shown

    # ---- acts of synchronisation ------------------------------------------------------------

    def join(self, warps: Ints) -> None:
        """Let all warps of each row (barriers, participants) see what the others have done."""
        everyone = reshape(warps, -1)
        self._catch_up(everyone)
        self._share_handed(everyone)
        views, rows = self.views, 2 * warps
        for kind in _KINDS if self._fenced else (GENERIC,):
            met = views.seen[kind, rows].max(axis=1)  # (barriers, columns)
            if kind == GENERIC:
                met[np.arange(len(warps))[:, None], self._warp_column[warps]] = self.limit()
            views.seen[kind, rows] = met[:, None]
        if self._some_lanes:
            mask = reduce_or(views.lane_mask[:, rows], axis=2)
            views.lane_mask[:, rows] = mask[:, :, None]
            views.lane_seen[:, rows] = views.lane_seen[:, rows].max(axis=2)[:, :, None]
            views.drop_surpassed(2 * everyone)
        self._update_floor(2 * everyone)
        self._tick()

    def warp_sync(self, warps: Ints) -> None:
        """Let all lanes of each warp (n,) see what its other lanes have done."""
        self._catch_up(warps)
        self._share_handed(warps)
        self.views.seen[GENERIC, 2 * warps, self._warp_column[warps]] = self.limit()
        self._tick()

    def release(self, lanes: Lanes, tokens: Clocks, rows: Ints) -> None:
        """Put what each lane (n,) has done and seen into its row (n,) of `tokens`."""
        warps, rows, masks = self._by_warp(lanes, rows)
        knows_more = (self.ahead[warps] & masks) != 0
        views = 2 * warps + knows_more
        limit = self.limit()
        each, column = np.arange(len(warps)), self._warp_column[warps]
        told = Clocks(len(warps), self.columns)
        told.copy(each, self.views, views)
        if self._some_handed:
            some = np.flatnonzero(self.handed[warps] & masks)
            told.merge(some, self._handed_clocks, warps[some])
            self._tell_own(told, each, warps, masks)
        whole = masks == _ALL_LANES
        told.seen[GENERIC, each[whole], column[whole]] = limit
        if not whole.all():
            self._some_lanes = True
            told.lane_mask[GENERIC, each[~whole], column[~whole]] |= masks[~whole]
            told.lane_seen[GENERIC, each[~whole], column[~whole]] = limit
        tokens.merge(rows, told, each)
        self._tick()

    def acquire(self, lanes: Lanes, tokens: Clocks, rows: Ints) -> None:
        """Let each lane (n,) see what was released into its row (n,) of `tokens`."""
        warps, rows, masks = self._by_warp(lanes, rows)
        whole = masks == _ALL_LANES
        part = warps[~whole]
        if part.size:
            fresh = np.unique(part[self.ahead[part] == 0])
            self.views.copy(2 * fresh + 1, self.views, 2 * fresh)
            np.bitwise_or.at(self.ahead, part, masks[~whole])
            self._some_ahead = True
            self.views.merge(2 * part + 1, tokens, rows[~whole])
            self._update_floor(2 * part + 1)
        if whole.any():
            self.views.merge(2 * warps[whole], tokens, rows[whole])
            self._update_floor(2 * warps[whole])
            both = whole & (self.ahead[warps] != 0)
            self.views.merge(2 * warps[both] + 1, tokens, rows[both])
            self._update_floor(2 * warps[both] + 1)
        self._catch_up(np.unique(warps[self.ahead[warps] == _ALL_LANES]))

    def snapshot(self, lanes: Lanes, rows: Clocks, planes: int) -> int:
        """Keep what the views of lanes (n,) have seen in the first `planes` planes of `rows`.

        A plane has a row for each warp. Returns the limit of what lanes themselves have done.
        """
        warps, _, masks = self._by_warp(lanes, None)
        views = 2 * warps + ((self.ahead[warps] & masks) != 0)
        for plane in range(planes):
            rows.copy(plane * len(self.ahead) + warps, self.views, views)
        return self.close()

    def release_snapshot(
        self, lanes: Ints, kept: Clocks, plane: int, limits: Ints, tokens: Clocks, rows: Ints
    ) -> None:
        """Put what each lane (n,) had seen at its last snapshot into its row (n,) of `tokens`.

        `limits` (n,) say up to when the lanes themselves had done things then.
        """
        limit = np.maximum.reduceat(limits, _starts(lanes >> 5, rows))
        warps, rows, masks = self._by_warp(lanes, rows)
        told = Clocks(len(warps), self.columns)
        each, column = np.arange(len(warps)), self._warp_column[warps]
        told.copy(each, kept, plane * len(self.ahead) + warps)
        self._some_lanes = True
        told.lane_mask[GENERIC, each, column] |= masks
        own = (GENERIC, each, column)
        told.lane_seen[own] = np.maximum(told.lane_seen[own], limit)
        tokens.merge(rows, told, each)

    def see_pending(self, lanes: Lanes, tokens: Clocks, rows: Ints, into: Clocks, at: int) -> None:
        """Keep what was released into rows (n,) of `tokens` for the warps of lanes (n,).

        They are kept from row `at` of `into`, warp by warp, until somebody acquires them.
        """
        warps, rows, _ = self._by_warp(lanes, rows)
        into.merge(at + warps, tokens, rows)

    def release_async(self, tokens: Clocks, rows: Ints) -> None:
        """Put what the asynchronous agent has done into rows (n,) of `tokens`."""
        tokens.seen[GENERIC, rows, self.async_column] = _ASYNC | self.limit()
        self._tick()

    def close(self) -> int:
        """Return the greatest stamp that can have been made so far; later ones are greater."""
        limit = self.limit()
        self._tick()
        return limit

    def see_lanes(self, warps: Ints, lanes: Ints, limits: Ints) -> None:
        """Let all lanes of warps (n,) see what one lane (n,) each did, up to a limit (n,)."""
        self._some_lanes = True
        columns = self.columns_of(lanes)
        bits = np.left_shift(np.uint32(1), (lanes & 31).astype(np.uint32))
        for offset in (0, 1):
            held = np.ones(len(warps), bool) if offset == 0 else self.ahead[warps] != 0
            views = 2 * warps[held] + offset
            place = (np.full(len(views), GENERIC), views, columns[held])
            np.bitwise_or.at(self.views.lane_mask, place, bits[held])
            np.maximum.at(self.views.lane_seen, place, limits[held])
            self.views.drop_surpassed(views)

    def fence_proxy(self, lanes: Lanes, kinds: Sequence[int] = PROXIES) -> None:
        """Hand what lanes (n,) have written and seen to the asynchronous proxy, of some spaces."""
        warps, _, masks = self._by_warp(lanes, None)
        self._fenced = self._some_handed = True
        whole = masks == _ALL_LANES
        if len(kinds) == len(PROXIES):
            self.handed[warps[whole]] = 0
        some = warps[~whole]
        self._handed_clocks.clear(some[self.handed[some] == 0])
        for kind in kinds:
            self._handed_at[kind, lanes] = self.limit()
            self._hand_over_all(warps[whole], kind)
            self._hand_over_some(some, masks[~whole], kind)
        self._tick()

    def _hand_over_all(self, warps: Ints, kind: int) -> None:
        """Hand over what all lanes of warps (n,) have seen."""
        seen, lane_mask, lane_seen = self.views.seen, self.views.lane_mask, self.views.lane_seen
        for offset in (0, 1):
            held = warps if offset == 0 else warps[self.ahead[warps] != 0]
            view = 2 * held + offset
            seen[kind, view] = np.maximum(seen[kind, view], seen[GENERIC, view])
            lane_mask[kind, view] |= lane_mask[GENERIC, view]
            lane_seen[kind, view] = np.maximum(lane_seen[kind, view], lane_seen[GENERIC, view])

    def _hand_over_some(self, warps: Ints, masks: npt.NDArray[np.uint32], kind: int) -> None:
        """Hand over what some lanes of warps (n,) have seen, in their own names."""
        clocks = self._handed_clocks
        views = 2 * warps + ((self.ahead[warps] & masks) != 0)
        for mine, theirs in (
            (clocks.seen, self.views.seen),
            (clocks.lane_seen, self.views.lane_seen),
        ):
            mine[kind, warps] = np.maximum(mine[kind, warps], theirs[GENERIC, views])
        clocks.lane_mask[kind, warps] |= self.views.lane_mask[GENERIC, views]
        self.handed[warps] |= masks

    def _tell_own(self, rows: Clocks, at: Ints, warps: Ints, masks: npt.NDArray[np.uint32]) -> None:
        """Put what the lanes in `masks` of warps (n,) have handed over of their own into rows."""
        asked = masks[:, None] >> _LANES & 1 != 0
        for kind in PROXIES:
            limits = np.where(asked, reshape(self._handed_at[kind], -1, 32)[warps], 0)
            own = (kind, at, self._warp_column[warps])
            rows.seen[own] = np.maximum(rows.seen[own], limits.min(axis=1))
            bits = ((limits > 0) << _LANES).sum(axis=1, dtype=np.uint32)
            rows.lane_mask[own] |= bits
            rows.lane_seen[own] = np.maximum(rows.lane_seen[own], limits.max(axis=1))
        self._some_lanes = True

    def _share_handed(self, warps: Ints) -> None:
        """Let all lanes of warps (n,), which meet, know what some have handed over."""
        if not self._some_handed:
            return
        handed_at = reshape(self._handed_at, len(_KINDS), -1, 32)
        some = warps[handed_at[:, warps].any(axis=(0, 2))]
        if not some.size:
            return
        told = some[self.handed[some] != 0]
        everyone = np.full(len(some), _ALL_LANES, np.uint32)
        for offset in (0, 1):
            self.views.merge(2 * told + offset, self._handed_clocks, told)
            self._tell_own(self.views, 2 * some + offset, some, everyone)
            self.views.drop_surpassed(2 * some + offset)
        self.handed[some] = 0
        handed_at[:, some] = 0
        self._some_handed = bool(self._handed_at.any())

    # ---- inside -----------------------------------------------------------------------------

    def _tick(self) -> None:
        self.now += 1
        if self.now >= _TIME_END:
            raise Misuse("steps", f"the program synchronised more than {_TIME_END:,} times")

    def _by_warp(
        self, lanes: Lanes, rows: Ints | None
    ) -> tuple[Ints, Ints, npt.NDArray[np.uint32]]:
        """Return the warps of ascending lanes, the row of each and a mask of its lanes."""
        numbers = lanes_array(lanes, len(self._view_of_lane))
        rows = np.zeros(len(numbers), np.int64) if rows is None else rows
        warps = numbers >> 5
        starts = _starts(warps, rows)
        bits = np.left_shift(np.uint32(1), (numbers & 31).astype(np.uint32))
        return warps[starts], rows[starts], np.bitwise_or.reduceat(bits, starts)

    def _catch_up(self, warps: Ints) -> None:
        """Let all lanes of warps see what some have seen."""
        if not self._some_ahead:
            return
        behind = warps[self.ahead[warps] != 0]
        if not behind.size:
            return
        self.views.merge(2 * behind, self.views, 2 * behind + 1)
        self._update_floor(2 * behind)
        self.ahead[behind] = 0
        self._some_ahead = bool(self.ahead.any())

    def _update_floor(self, views: Ints) -> None:
        seen = self.views.seen[GENERIC]
        if self.whole:
            floor = seen[views[:, None], self._own_columns[views]].min(axis=1)
        else:
            floor = seen[views, : self.async_column].min(axis=1)
        self.floor[views | 1] = floor  # lanes ahead have seen at least as much as their warp
        self.floor[views] = floor
        self.lowest_floor = int(self.floor.min())


def _starts(warps: Ints, rows: Ints) -> Ints:
    """Return where runs of one warp and one row begin."""
    new = (warps[1:] != warps[:-1]) | (rows[1:] != rows[:-1])
    return np.concatenate((np.zeros(1, np.int64), np.flatnonzero(new) + 1))


def columns_in(stamps: Ints) -> Ints:
    """Return the columns of stamps."""
    return stamps >> _COLUMN_SHIFT & _COLUMN_MASK


def lanes_in(stamps: Ints) -> Ints:
    """Return the lanes (in their warps) of stamps."""
    return stamps >> _LANE_SHIFT & 31


def numbers_in(stamps: Ints) -> Ints:
    """Return the numbers of the instructions of stamps."""
    return stamps & (1 << NUMBER_BITS) - 1


def lane_of(stamp: int) -> int:
    """Return the lane (in its warp) of a stamp."""
    return stamp >> _LANE_SHIFT & 31


def column_of(stamp: int) -> int:
    """Return the column of a stamp: the warp in its cluster, or the asynchronous agent."""
    return stamp >> _COLUMN_SHIFT & _COLUMN_MASK


def number_of(stamp: int) -> int:
    """Return the number of the instruction of a stamp."""
    return stamp & (1 << NUMBER_BITS) - 1


def scope_of(stamps: Ints) -> Ints:
    """Return how strong the accesses of stamps are; strong ones do not race within their scopes."""
    return stamps >> _SCOPE_SHIFT & _SCOPE_MASK


def lanes_array(lanes: Lanes, total: int) -> Ints:
    """Return lanes as an array of their numbers in the batch."""
    if isinstance(lanes, slice):
        return np.arange(*lanes.indices(total), dtype=np.int64)
    return lanes

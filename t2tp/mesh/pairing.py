"""Schedules a permutation between processors as rounds of pairwise exchanges."""

from collections.abc import Sequence


def pairings(source: Sequence[int | None]) -> list[list[int]] | None:
    """Returns rounds of pairwise exchanges after which member k has exchanged with `source[k]`.

    If each slice has at most one receiver, each member has at most two partners, so two rounds are
    enough (three for a ring of odd length). A member then sends only two or three slices. In an
    all-to-all it would send a slice to every member.

    Args:
      source: the member from which each member receives a slice. None or the member itself: it
        receives nothing.

    Returns:
      The partners of all members in each round. None if there is no such schedule: a slice has
        several receivers, or the number of members is odd.
    """
    size = len(source)
    edges = [(s, k) for k, s in enumerate(source) if s is not None and s != k]
    wanted = [s for s, _ in edges]
    if size % 2 or len(set(wanted)) < len(wanted):
        return None
    rounds: list[dict[int, int]] = []
    for path in _paths(edges):
        for a, b in path:
            # At most two earlier edges share a member with this edge: the previous edge of the path
            # and, in a ring, the first edge.
            partners = next((r for r in rounds if r.get(a) == b or not {a, b} & r.keys()), None)
            if partners is None:
                rounds.append(partners := {})
            partners[a], partners[b] = b, a
    return [_all_paired(r, size) for r in rounds]


def _paths(edges: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Orders the edges into paths and rings."""
    following = dict(edges)
    starts = [a for a in following if a not in following.values()]
    paths = []
    while following:
        at = starts.pop() if starts else next(iter(following))
        path = []
        while at in following:
            path.append((at, following.pop(at)))
            at = path[-1][1]
        paths.append(path)
    return paths


def _all_paired(partners: dict[int, int], size: int) -> list[int]:
    """Pairs the members that have no partner with each other."""
    alone = [member for member in range(size) if member not in partners]
    for a, b in zip(alone[::2], alone[1::2], strict=True):
        partners[a], partners[b] = b, a
    return [partners[member] for member in range(size)]

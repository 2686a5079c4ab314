"""Seconds of collectives, from the latency and bandwidth of each level of links.

R. Thakur et al., "Optimization of Collective Communication Operations in MPICH" (2005), section 4.
A collective whose group spans several levels is as slow as the slowest level.
"""

import functools
import itertools
import math
from dataclasses import dataclass

from t2tp import upstream
from t2tp.mesh.collective_kinds import CollectiveKind, collective_kind
from t2tp.planner.cluster_file import ClusterFile, Link
from t2tp.step.work import Traffic


@dataclass(frozen=True)
class Group:
    """The members of a collective's group, counted by level.

    Attributes:
      members: number of members in the same host, in the same rack, and so on for each level.
    """

    size: int
    members: tuple[int, ...]

    def spans(self) -> list[int]:
        """Returns the levels that the group's messages cross."""
        inside = (1, *self.members)
        return [i for i in range(len(self.members)) if self.members[i] > inside[i]]


class CollectiveCost:
    """The seconds of a mesh's collectives on a cluster."""

    def __init__(self, cluster: ClusterFile, mesh_shape: upstream.Shape) -> None:
        self._cluster = cluster
        self._mesh_shape = mesh_shape
        self.group = functools.cache(self._group)

    def seconds(self, traffic: Traffic) -> float:
        """Returns the seconds of one execution of a collective."""
        group = self.group(traffic.axes)
        if group.size == 1:
            return 0.0
        kind = collective_kind(traffic.kind)
        latency = self._latency(group, kind)
        if kind.is_direct:
            return latency + self._direct(group, self.sent_bytes(traffic))
        # A ring through all members is as fast as its slowest level.
        rate = min(self._level_bandwidth(group, level) for level in group.spans())
        return latency + self.sent_bytes(traffic) / rate

    def sent_bytes(self, traffic: Traffic) -> float:
        """Returns the bytes that a member sends in one execution."""
        size = self.group(traffic.axes).size
        if size == 1:
            return 0.0
        return traffic.num_bytes * collective_kind(traffic.kind).sent_bytes(size)

    def _group(self, axes: tuple[str, ...]) -> Group:
        """Counts the members of the first processor's group; the mesh's last axis is nearest."""
        sizes = self._mesh_shape.to_integer_list
        names = self._mesh_shape.dimension_names
        steps = [
            range(0, sizes[i] * (stride := math.prod(sizes[i + 1 :])), stride)
            for i, name in enumerate(names)
            if name in axes
        ]
        places = [sum(offsets) for offsets in itertools.product(*steps)]
        counts = []
        for link in self._cluster.links:
            unit = link.devices or self._mesh_shape.size
            counts.append(sum(place < unit for place in places))
        return Group(len(places), tuple(counts))

    def _level_bandwidth(self, group: Group, level: int) -> float:
        link = self._cluster.links[level]
        below = 1 if level == 0 else group.members[level - 1]
        return self._share(link) * (below if link.cards == "host" else 1)

    def _share(self, link: Link) -> float:
        """Returns one device's bytes/s of a link that all devices use at once."""
        devices = self._mesh_shape.size
        sharing = link.devices or devices if link.shared_by_all else link.shared_by
        return link.bandwidth * self._cluster.software.link / min(sharing, devices)

    def _latency(self, group: Group, kind: CollectiveKind) -> float:
        """Returns the latency: the seconds that do not depend on the bandwidth."""
        levels = group.spans()
        inside = (1, *group.members)
        units = [math.ceil(group.members[level] / inside[level]) for level in levels]
        messages = zip(kind.messages(units), levels, strict=True)
        latencies = (count * self._cluster.links[level].latency for count, level in messages)
        return self._cluster.software.start + sum(latencies)

    def _direct(self, group: Group, sent: float) -> float:
        """Returns the seconds of the bytes of a direct collective, such as an all-to-all.

        A member sends `sent` bytes, the same number to each other member. Each level carries a part
        of them. For example, the level between hosts carries the bytes to other hosts.
        """
        seconds = 0.0
        for level in group.spans():
            below = 1 if level == 0 else group.members[level - 1]
            moved = sent * (group.size - below) / (group.size - 1)
            seconds = max(seconds, moved / self._share(self._cluster.links[level]))
        return seconds

"""Seconds of collectives, from the latency and bandwidth of each level of links.

R. Thakur et al., "Optimization of Collective Communication Operations in MPICH" (2005), section 4.
A collective whose group spans several levels is as slow as the slowest level.
"""

import functools
import itertools
import math
from dataclasses import dataclass

from t2tp import upstream
from t2tp.mesh.collective_kinds import collective_kind
from t2tp.planner.cluster_file import ClusterFile, Link
from t2tp.step.work import Traffic


@dataclass(frozen=True)
class Level:
    """A level of links that the messages of a collective's group cross.

    Attributes:
      link: the links of this level.
      below: number of members in one unit of the level below, such as one host.
      members: number of members in one unit of this level.
    """

    link: Link
    below: int
    members: int


class CollectiveCost:
    """The seconds of a mesh's collectives on a cluster."""

    def __init__(self, cluster: ClusterFile, mesh_shape: upstream.Shape) -> None:
        self._cluster = cluster
        self._mesh_shape = mesh_shape
        self._group = functools.cache(self._find_group)

    def seconds(self, traffic: Traffic) -> float:
        """Returns the seconds of one execution of a collective."""
        size, levels = self._group(traffic.axes)
        if size == 1:
            return 0.0
        kind, sent = collective_kind(traffic.kind), self.sent_bytes(traffic)
        units = [math.ceil(level.members / level.below) for level in levels]
        latency = self._cluster.software.start + sum(
            count * level.link.latency
            for count, level in zip(kind.messages(units), levels, strict=True)
        )
        if kind.is_direct:
            # A member sends the same number of bytes to each other member. Each level carries a
            # part of them. For example, the level between hosts carries the bytes to other hosts.
            return latency + max(
                sent * (size - level.below) / (size - 1) / self._share(level.link)
                for level in levels
            )
        # A ring through all members is as fast as its slowest level.
        return latency + sent / min(
            self._share(level.link) * (level.below if level.link.cards == "host" else 1)
            for level in levels
        )

    def sent_bytes(self, traffic: Traffic) -> float:
        """Returns the bytes that a member sends in one execution."""
        size, _ = self._group(traffic.axes)
        if size == 1:
            return 0.0
        return traffic.num_bytes * collective_kind(traffic.kind).sent_bytes(size)

    def _find_group(self, axes: tuple[str, ...]) -> tuple[int, list[Level]]:
        """Returns the size of a group and its levels; the mesh's last axis is nearest."""
        sizes = self._mesh_shape.to_integer_list
        names = self._mesh_shape.dimension_names
        steps = [
            range(0, sizes[i] * (stride := math.prod(sizes[i + 1 :])), stride)
            for i, name in enumerate(names)
            if name in axes
        ]
        # The members of the first processor's group.
        places = [sum(offsets) for offsets in itertools.product(*steps)]
        levels, below = [], 1
        for link in self._cluster.links:
            unit = link.devices or self._mesh_shape.size
            members = sum(place < unit for place in places)
            if members > below:
                levels.append(Level(link, below, members))
            below = members
        return len(places), levels

    def _share(self, link: Link) -> float:
        """Returns one device's bytes/s of a link that all devices use at once."""
        devices = self._mesh_shape.size
        sharing = link.devices or devices if link.shared_by_all else link.shared_by
        return link.bandwidth * self._cluster.software.link / min(sharing, devices)

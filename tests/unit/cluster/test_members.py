"""Who stands, who yields, and when: whole clusters in virtual time."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from fasti.cluster.member_records import Beat, MemberRecord, MemberSettings, ShardBeat
from fasti.cluster.members import (
    LeaveShard,
    Members,
    PingMember,
    ResumeAdmitting,
    SendBeat,
    StandForShard,
    StopAdmitting,
    YieldShard,
    find_heir,
)
from fasti.cluster.placement import rank_members
from fasti.cluster.writer_actions import Role
from tests.unit.cluster.crowd import Crowd


def settled(names: str = "abc", **limits: int) -> Crowd:
    """A cluster in which all shards are led by those that rank first."""
    crowd = Crowd(names, **limits)
    crowd.run(2_000)
    assert crowd.leaders() == ranked(names)
    crowd.log.clear()
    return crowd


def ranked(names: str) -> dict[int, str | None]:
    weights = dict.fromkeys(names, 1.0)
    return {shard: rank_members(shard, weights).first for shard in range(4)}


def test_a_new_cluster_listens_and_then_every_shard_gets_one_leader() -> None:
    crowd = Crowd("abc")
    crowd.run(490)
    assert crowd.leaders() == dict.fromkeys(range(4))
    crowd.run(1_000)
    assert crowd.leaders() == ranked("abc")
    assert [stream.epoch for stream in crowd.streams.values()] == [1] * 4


def test_nothing_happens_while_all_live() -> None:
    crowd = settled()
    crowd.run(30_000)
    assert crowd.log == []


def test_a_killed_leaders_shards_go_to_their_standbys_within_half_a_second() -> None:
    crowd = settled()
    gone = crowd.leaders()[0]
    assert gone is not None
    crowd.kill(gone)
    crowd.run(500)
    assert crowd.leaders() == ranked("abc".replace(gone, ""))
    others = {shard for shard, leader in ranked("abc").items() if leader != gone}
    assert all(crowd.streams[shard].epoch == 1 for shard in others)


def test_a_stopped_leader_is_suspected_after_two_seconds_and_suspects_nobody_when_it_is_back() -> (
    None
):
    crowd = settled()
    name = crowd.leaders()[0]
    assert name is not None
    crowd.stations[name].stopped_until_ms = crowd.now_ms + 5_000
    begun_ms = crowd.now_ms
    crowd.run(1_900)
    assert crowd.did(StandForShard) == []
    crowd.run(1_100)
    assert name not in crowd.leaders().values()
    crowd.log.clear()
    crowd.run(5_000 - (crowd.now_ms - begun_ms) + 5_000)
    assert crowd.did(StandForShard) == []


def test_shards_come_back_to_one_that_ranks_first_for_ten_seconds() -> None:
    crowd = settled()
    name = crowd.leaders()[0]
    assert name is not None
    crowd.kill(name)
    crowd.run(3_000)
    crowd.join(name)
    begun_ms = crowd.now_ms
    crowd.run(9_000)
    assert crowd.did(StopAdmitting, begun_ms) == []
    crowd.run(3_000)
    assert crowd.leaders() == ranked("abc")
    # Each was handed over once, and its heir did not wait.
    yields, stands = crowd.did(YieldShard, begun_ms), crowd.did(StandForShard, begun_ms)
    assert (
        len(yields)
        == len(stands)
        == len([1 for leader in ranked("abc").values() if leader == name])
    )
    assert all(who == name for _, who, _ in stands)
    assert stands[-1][0] - yields[0][0] <= 250


def test_a_leader_whose_clock_is_ahead_yields_and_does_not_come_back_until_it_is_right() -> None:
    crowd = settled()
    name = crowd.leaders()[0]
    assert name is not None
    crowd.stations[name].clock_ms = 10_000
    crowd.run(3_000)
    assert name not in crowd.leaders().values()
    crowd.run(30_000)
    assert name not in crowd.leaders().values()
    crowd.stations[name].clock_ms = 0
    crowd.run(15_000)
    assert crowd.leaders() == ranked("abc")


def test_a_leader_whose_clock_is_behind_yields_to_one_whose_is_right() -> None:
    crowd = settled()
    name = crowd.leaders()[0]
    assert name is not None
    crowd.stations[name].clock_ms = -10_000
    crowd.run(15_000)
    assert name not in crowd.leaders().values()
    assert {who for _, who, _ in crowd.did(YieldShard)} == {name}


def test_of_two_the_one_that_is_ahead_yields_since_nobody_knows_who_is_right() -> None:
    crowd = settled("ab")
    crowd.stations["b"].clock_ms = -10_000
    crowd.run(15_000)
    assert set(crowd.leaders().values()) == {"b"}


def test_a_leader_whose_clock_is_a_little_off_stays() -> None:
    for clock_ms in (-200, 200):
        crowd = settled()
        name = crowd.leaders()[0]
        assert name is not None
        crowd.stations[name].clock_ms = clock_ms
        crowd.run(15_000)
        assert crowd.did(YieldShard) == []


def test_a_candidate_whose_clock_is_ahead_does_not_stand_and_the_next_in_rank_does() -> None:
    crowd = settled("abcd")
    first = crowd.leaders()[0]
    assert first is not None
    order = rank_members(0, dict.fromkeys("abcd", 1.0)).names
    crowd.stations[order[1]].clock_ms = 10_000
    crowd.run(1_500)
    crowd.kill(first)
    crowd.run(1_000)
    assert crowd.leaders()[0] == order[2]


def test_one_that_is_alone_leads_whatever_its_clock() -> None:
    crowd = Crowd("a")
    crowd.stations["a"].clock_ms = 99_999
    crowd.run(1_000)
    assert set(crowd.leaders().values()) == {"a"}


def loading(crowd: Crowd) -> str:
    """The leader of shard 0 was killed; its standby leads, and it is back and loads what has come meanwhile."""
    crowd.streams[0].sequence = 5_000
    name = crowd.leaders()[0]
    assert name is not None
    crowd.kill(name)
    crowd.run(3_000)
    crowd.join(name)
    crowd.stations[name].loads = True
    crowd.run(1_000)
    return name


def test_a_standby_stays_until_the_one_that_comes_in_its_place_has_caught_up() -> None:
    crowd = settled()
    name = loading(crowd)
    [third] = set("abc") - {name, crowd.leaders()[0]}
    crowd.run(5_000)
    assert crowd.stations[third].roles[0] is Role.STANDBY
    crowd.stations[name].loads = False
    crowd.run(500)
    assert crowd.stations[third].roles[0] is Role.IDLE


def test_who_has_everything_stands_before_one_that_ranks_first_and_loads() -> None:
    crowd = settled()
    name = loading(crowd)
    leader = crowd.leaders()[0]
    assert leader is not None
    crowd.kill(leader)
    crowd.run(500)
    [third] = set("abc") - {name, leader}
    assert crowd.leaders()[0] == third


def test_who_leads_in_place_of_the_first_gives_it_time_before_it_hands_over() -> None:
    crowd = settled("ab")
    first = crowd.leaders()[0]
    assert first is not None
    [other] = set("ab") - {first}
    crowd.run(20_000)
    # The first could not lead, or was fenced: it follows, and ranks first as before.
    station = crowd.stations[other]
    crowd.do(other, station, StandForShard(0))
    began = crowd.now_ms
    crowd.run(9_000)
    assert crowd.leaders()[0] == other
    assert crowd.did(StopAdmitting, began) == []
    crowd.run(3_000)
    assert crowd.leaders()[0] == first


def test_one_that_loads_stands_if_nobody_has_more() -> None:
    crowd = settled("ab")
    name = loading(crowd)
    leader = crowd.leaders()[0]
    assert leader is not None
    crowd.kill(leader)
    crowd.run(500)
    assert crowd.leaders()[0] == name


def test_a_member_of_weight_0_is_emptied() -> None:
    crowd = settled()
    [(name, count)] = Counter(ranked("abc").values()).most_common(1)
    assert name is not None
    assert count > 1
    empty(crowd, name)
    crowd.run(1_000)
    assert crowd.leaders() == ranked("abc".replace(name, ""))
    # One after the other: the next begins when the one before is let go.
    mine = [duty for _, who, duty in crowd.log if who == name and not isinstance(duty, LeaveShard)]
    assert [type(duty) for duty in mine] == [StopAdmitting, YieldShard] * count
    crowd.log.clear()
    crowd.run(30_000)
    assert crowd.did(StandForShard) == crowd.did(YieldShard) == []
    assert set(crowd.stations[name].roles.values()) == {Role.IDLE}


def test_a_member_that_is_emptied_gets_its_share_back_when_it_has_its_weight_again() -> None:
    crowd = settled()
    empty(crowd, "a")
    crowd.run(1_000)
    empty(crowd, "a", weight=1.0)
    crowd.run(9_000)
    assert crowd.leaders() == ranked("bc")
    crowd.run(3_000)
    assert crowd.leaders() == ranked("abc")


def test_one_that_is_emptied_leads_on_while_nobody_can_take_its_shards() -> None:
    crowd = settled("ab")
    before = crowd.leaders()
    for name in "ab":
        empty(crowd, name)
    crowd.run(30_000)
    assert crowd.leaders() == before
    assert crowd.did(StopAdmitting) == []
    crowd.join("c")
    crowd.run(2_000)
    assert set(crowd.leaders().values()) == {"c"}


def empty(crowd: Crowd, name: str, weight: float = 0.0) -> None:
    record = crowd.stations[name].members.record._replace(weight=weight)
    for other in crowd.stations.values():
        other.members.learn(record, crowd.now_ms)


# One broker, call by call


def alone_with_b(now_ms: int = 0) -> Members:
    """Broker a, which has heard that b leads shard 0 under epoch 3."""
    members = Members(MemberRecord("a", "a:1"), [0], now_ms, MemberSettings(listen_ms=0))
    members.learn(MemberRecord("b", "b:1", incarnation=1), now_ms)
    hear_b(members, now_ms)
    members.play(0, Role.STANDBY, 3, 7, now_ms)
    return members


def hear_b(members: Members, now_ms: int, role: Role = Role.LEADER, sequence: int = 7) -> bool:
    beat = Beat("b", 1, now_ms * 1000, (ShardBeat(0, role, 3, sequence),))
    return members.hear(beat, now_ms, now_ms * 1000)


def test_a_standby_pings_its_leader_with_every_beat() -> None:
    plan = alone_with_b().decide(0)
    assert plan == ([SendBeat(), PingMember("b")], 100)


def test_no_responders_once_is_nothing_and_twice_is_gone() -> None:
    members = alone_with_b()
    members.miss("b")
    assert members.liveness("b", 0) == "alive"
    members.answer("b", 5)
    members.miss("b")
    assert members.liveness("b", 5) == "alive"
    members.miss("b")
    assert members.liveness("b", 5) == "gone"
    hear_b(members, 10)
    assert members.liveness("b", 10) == "alive"


def test_a_refused_door_is_gone_at_once() -> None:
    members = alone_with_b()
    members.refuse("b")
    assert StandForShard(0) in members.decide(10).duties


def test_a_new_incarnation_leads_nothing() -> None:
    members = alone_with_b()
    members.learn(MemberRecord("b", "b:1", incarnation=2), 10)
    assert members.leader(0, 10) is None
    # A late beat of the old one is not the new one's.
    assert not hear_b(members, 20)
    assert members.leader(0, 20) is None


def test_one_that_gave_up_after_its_start_is_no_leader_for_long() -> None:
    members = alone_with_b()
    for now_ms in range(0, 1_000, 100):
        hear_b(members, now_ms, Role.STANDBY)
        assert members.leader(0, now_ms) == "b"
    assert members.leader(0, 1_000) is None


def test_the_higher_epoch_wins_in_any_order() -> None:
    members = alone_with_b()
    members.started(0, "c", 5)
    hear_b(members, 10)
    # Of c nothing was heard, so nobody leads; b, which still thinks that it does, has lost.
    assert members.leader(0, 10) is None


def test_a_beat_under_way_does_not_bring_back_one_that_yielded() -> None:
    members = alone_with_b()
    members.yielded(0, 3, "a")
    hear_b(members, 10)
    assert members.leader(0, 10) is None
    assert StandForShard(0) in members.decide(10).duties


def test_the_next_in_rank_waits_for_a_candidate_that_takes_long() -> None:
    members = alone_with_b()
    members.yielded(0, 3, "c")
    stood = []
    for now_ms in range(0, 18_000, 100):
        hear_b(members, now_ms, Role.CANDIDATE)
        if StandForShard(0) in members.decide(now_ms).duties:
            stood.append(now_ms)
    assert 15_000 <= stood[0] < 16_000


def test_the_next_in_rank_stands_as_soon_as_a_candidate_gives_up() -> None:
    members = alone_with_b()
    members.yielded(0, 3, "c")
    for now_ms in range(0, 2_000, 100):
        hear_b(members, now_ms, Role.CANDIDATE)
        assert StandForShard(0) not in members.decide(now_ms).duties
    hear_b(members, 2_000, Role.IDLE)
    assert StandForShard(0) in members.decide(2_000).duties


def test_a_handover_to_one_that_does_not_catch_up_is_called_off() -> None:
    members = alone_with_b()
    members.learn(MemberRecord("b", "b:1", weight=1e9, incarnation=1), 0)
    members.started(0, "a", 4)
    members.play(0, Role.LEADER, 4, 9, 0)
    duties = []
    for now_ms in range(0, 13_000, 100):
        hear_b(members, now_ms, Role.STANDBY, sequence=8)
        duties += [(now_ms, duty) for duty in members.decide(now_ms).duties if duty != SendBeat()]
    assert duties == [(10_000, StopAdmitting(0, "b")), (12_000, ResumeAdmitting(0))]


def test_a_member_that_can_not_read_the_format_gets_no_shard() -> None:
    members = alone_with_b()
    assert members.ranking(0, {"a", "b"}).rank("b") is not None
    members.learn(MemberRecord("b", "b:1", formats=frozenset({2}), incarnation=1), 0)
    assert members.ranking(0, {"a", "b"}).rank("b") is None


def test_a_member_that_was_forgotten_is_unknown() -> None:
    members = alone_with_b()
    members.forget("b")
    assert not hear_b(members, 10)
    assert members.alive(10) == {"a"}


def test_one_that_slept_takes_none_for_dead() -> None:
    members = alone_with_b()
    members.decide(0)
    assert StandForShard(0) not in members.decide(60_000).duties
    assert members.liveness("b", 60_000) == "alive"
    # From then on, silence counts.
    for now_ms in range(60_100, 62_000, 100):
        assert StandForShard(0) not in members.decide(now_ms).duties
    assert StandForShard(0) in members.decide(62_400).duties


def test_one_that_slept_listens_before_it_stands() -> None:
    members = Members(MemberRecord("a", "a:1"), [0], 0)
    assert StandForShard(0) not in members.decide(60_000).duties
    assert StandForShard(0) not in members.decide(60_499).duties
    assert StandForShard(0) in members.decide(60_500).duties


def with_clocks(**ahead_ms: int) -> Members:
    """Broker a, which follows shard 0 that nobody leads, beside others with these clocks."""
    members = Members(MemberRecord("a", "a:1"), [0], 0, MemberSettings(listen_ms=0))
    for name, ahead in ahead_ms.items():
        members.learn(MemberRecord(name, f"{name}:1"), 0)
        members.hear(Beat(name, 0, ahead * 1000), 0, 0)
    members.play(0, Role.STANDBY, 3, 7, 0)
    return members


def stands_within(members: Members, ms: int) -> bool:
    plans = [members.decide(now_ms) for now_ms in range(0, ms, 100)]
    return any(StandForShard(0) in plan.duties for plan in plans)


def test_a_candidate_stands_only_with_a_clock_that_is_not_far_ahead() -> None:
    assert not stands_within(with_clocks(b=-251, c=-251), 1_500)
    assert stands_within(with_clocks(b=-250, c=-250), 1_500)
    assert stands_within(with_clocks(b=-5_000, c=0), 1_500)


def test_a_beat_that_comes_late_is_not_a_slow_clock() -> None:
    members = with_clocks(b=0, c=0)
    for name in "bc":
        members.hear(Beat(name, 0, 0), 5_000, 5_000_000)
    assert members.clocks.ahead_ms("a", {"a", "b", "c"}) == 0


def leading_below_b(
    lag: int = 0, ahead_ms: int = 0, stalled: frozenset[int] = frozenset()
) -> list[object]:
    """What leader a does in 15 s beside b, which ranks first; c is there for the median."""
    members = Members(MemberRecord("a", "a:1"), [0], 0, MemberSettings(listen_ms=0))
    members.learn(MemberRecord("b", "b:1", weight=1e9), 0)
    members.learn(MemberRecord("c", "c:1", weight=1e-9), 0)
    members.stalled = stalled
    members.play(0, Role.LEADER, 4, 1_000, 0)
    duties: list[object] = []
    for now_ms in range(0, 15_000, 100):
        item = ShardBeat(0, Role.STANDBY, 4, 1_000 - lag)
        members.hear(Beat("b", 0, (now_ms + ahead_ms) * 1000, (item,)), now_ms, now_ms * 1000)
        members.hear(Beat("c", 0, now_ms * 1000), now_ms, now_ms * 1000)
        duties += [duty for duty in members.decide(now_ms).duties if duty != SendBeat()]
    return duties


def test_a_shard_is_handed_over_to_one_that_is_near_and_has_a_right_clock() -> None:
    assert leading_below_b()[:2] == [StopAdmitting(0, "b"), YieldShard(0, "b")]
    assert leading_below_b(lag=257) == []
    assert leading_below_b(ahead_ms=300) == []
    # One that loads the shard says 0, however little was written.
    assert leading_below_b(lag=1_000) == []


def test_a_candidate_that_is_at_it_is_waited_for() -> None:
    members = alone_with_b()
    members.yielded(0, 3, "b")
    for now_ms in range(0, 15_000, 100):
        hear_b(members, now_ms, Role.CANDIDATE)
        assert StandForShard(0) not in members.decide(now_ms).duties
    # It gave up.
    hear_b(members, 15_000, Role.STANDBY)
    assert StandForShard(0) in members.decide(15_000).duties


def test_a_candidate_is_not_waited_for_forever_nor_one_that_is_gone() -> None:
    members = alone_with_b()
    members.yielded(0, 3, "a")
    hear_b(members, 0, Role.CANDIDATE)
    assert StandForShard(0) not in members.decide(0).duties
    members.refuse("b")
    assert StandForShard(0) in members.decide(10).duties
    members = alone_with_b()
    members.yielded(0, 3, "a")
    for now_ms in range(0, 15_100, 100):
        hear_b(members, now_ms, Role.CANDIDATE)
        duties = members.decide(now_ms).duties
    assert StandForShard(0) in duties


def test_a_candidate_has_its_time_however_long_there_was_no_leader() -> None:
    members = alone_with_b()
    members.yielded(0, 3, "b")
    for now_ms in range(0, 30_000, 100):
        hear_b(members, now_ms, Role.STANDBY)
        # This one tries, and fails.
        members.play(0, Role.CANDIDATE, 0, 0, now_ms)
        members.decide(now_ms)
    members.play(0, Role.STANDBY, 3, 0, 30_000)
    hear_b(members, 30_000, Role.CANDIDATE)
    assert StandForShard(0) not in members.decide(30_000).duties
    # Once: who gives up and tries again is not waited for anew.
    for now_ms in range(30_100, 45_000, 100):
        hear_b(members, now_ms, Role.CANDIDATE if now_ms % 1_000 else Role.STANDBY)
        members.decide(now_ms)
    hear_b(members, 45_000, Role.CANDIDATE)
    assert StandForShard(0) in members.decide(45_000).duties


def test_the_heir_of_one_that_leaves_is_the_first_that_follows() -> None:
    members = alone_with_b()
    for name in "cd":
        members.learn(MemberRecord(name, f"{name}:1"), 0)
    assert find_heir(members, 0, 0) == members.ranking(0, {"b", "c", "d"}).first
    members.hear(Beat("c", 0, 0, (ShardBeat(0, Role.STANDBY, 3, 7),)), 0, 0)
    assert find_heir(members, 0, 0) == "c"
    for name in "bcd":
        members.refuse(name)
    assert find_heir(members, 0, 0) is None


def test_a_shard_whose_journal_does_not_answer_stays() -> None:
    assert leading_below_b(stalled=frozenset({0})) == []
    assert leading_below_b(stalled=frozenset({1})) != []


def heard_until(members: Members, silent_ms: int, end_ms: int) -> list[object]:
    """What a does, if b's beats and its own come until a moment and none after it."""
    duties: list[object] = []
    for now_ms in range(0, end_ms, 100):
        if now_ms < silent_ms:
            members.echo(now_ms)
            item = ShardBeat(0, Role.LEADER, 4, 100)
            members.hear(Beat("b", 0, now_ms * 1000, (item,)), now_ms, now_ms * 1000)
        duties += members.decide(now_ms).duties
    return duties


def test_one_that_does_not_hear_itself_takes_nobody_for_dead_until_it_has_listened() -> None:
    members = with_clocks(b=0)
    assert StandForShard(0) not in heard_until(members, 1_000, 60_000)
    # It hears itself again, and b is not there any more.
    stood_ms = None
    for now_ms in range(60_000, 70_000, 100):
        members.echo(now_ms)
        if stood_ms is None and StandForShard(0) in members.decide(now_ms).duties:
            stood_ms = now_ms
    assert stood_ms is not None
    assert stood_ms >= 62_900


events = st.lists(
    st.tuples(
        st.sampled_from(["kill", "join", "stop", "clock"]),
        st.sampled_from("abcd"),
        st.integers(0, 3_000),
    ),
    max_size=6,
)


@settings(max_examples=25, deadline=None)
@given(events)
def test_whatever_happens_the_ranked_lead_in_the_end(
    happenings: list[tuple[str, str, int]],
) -> None:
    crowd = Crowd("abcd", shards=3)
    for what, name, ms in happenings:
        station = crowd.stations[name]
        if what == "kill":
            crowd.kill(name)
        elif what == "join" and station.dead:
            crowd.join(name)
        elif what == "stop":
            station.stopped_until_ms = crowd.now_ms + ms
        elif what == "clock":
            station.clock_ms = ms - 1_500
        crowd.run(ms // 10 * 10)
    for station in crowd.stations.values():
        station.clock_ms = 0
    crowd.run(17_000)
    alive = [name for name, station in crowd.stations.items() if not station.dead]
    weights = dict.fromkeys(alive, 1.0)
    for shard, leader in crowd.leaders().items():
        # A dead one stays in the stream until it has a successor; with nobody left it has none.
        assert not alive or leader == rank_members(shard, weights).first
    quiet = len(crowd.log)
    crowd.run(12_000)
    assert len(crowd.log) == quiet

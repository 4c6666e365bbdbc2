//! Which branches get relays, and that all arrive where they did.

use super::*;
use crate::encode::relax::relax;
use lifter::ir::Condition;

const FAR: u32 = 1000;

fn shape(body_len: u32, terminator: OutTerminator) -> Shape {
    Shape { align: 1, body_len, terminator, loop_prefix_len: 1 }
}
fn to(block: usize) -> OutTarget {
    OutTarget::Placed(Out::new(block))
}
fn jump(block: usize) -> OutTerminator {
    OutTerminator::Jump(to(block))
}
fn branch(block: usize) -> OutTerminator {
    OutTerminator::Branch { condition: Condition(4), taken: to(block), jump: None }
}
fn end(is_closed: bool) -> End {
    End { at: Va(0x1000), is_spared: false, unwinding: Some(0), is_closed }
}

/// What comes of a fragment; of blocks without a terminator those behind which there is no way are told.
fn placed(shapes: &[Shape], closed: &[usize], change: impl Fn(usize, &mut End)) -> Relaxed {
    let blocks = 0..shapes.len() as u32;
    let mut relaxed = relax(shapes, &blocks, 0);
    let ends = |(index, shape): (usize, &Shape)| {
        let mut end = end(matches!(shape.terminator, OutTerminator::Jump(_)) || closed.contains(&index));
        change(index, &mut end);
        end
    };
    let ends: Vec<End> = shapes.iter().enumerate().map(ends).collect();
    let is_spared = |target: OutTarget| matches!(target, OutTarget::Placed(out) if ends[out.index()].is_spared);
    place(Fragment { shapes, ends: &ends, blocks: &blocks, room: 0 }, is_spared, &mut relaxed);
    relaxed
}

#[test]
fn of_two_jumps_to_one_place_the_first_goes_by_way_of_the_second() {
    let shapes = [shape(4, jump(3)), shape(4, jump(3)), shape(FAR, OutTerminator::None), shape(1, OutTerminator::None)];
    let relaxed = placed(&shapes, &[], |_, _| ());
    assert_eq!(relaxed.relayed, [Relayed { block: 0, is_jump: true, offset: 4 + 2 + 4 }]);
    assert_eq!(relaxed.offsets[2], 4 + 2 + 4 + 5);
}

#[test]
fn branches_go_by_way_of_a_jump_in_reach_and_by_no_other() {
    let none = OutTerminator::None;
    let shapes = [shape(4, branch(4)), shape(100, jump(4)), shape(300, branch(4)), shape(FAR, none), shape(1, none)];
    let relaxed = placed(&shapes, &[], |_, _| ());
    assert_eq!(relaxed.relayed, [Relayed { block: 0, is_jump: false, offset: 4 + 2 + 100 }]);
    assert!(relaxed.is_long[2].taken && relaxed.is_long[1].jump);
}

#[test]
fn several_branches_get_an_island_behind_an_end() {
    let none = OutTerminator::None;
    let shapes = [shape(4, branch(5)), shape(10, none), shape(10, branch(5)), shape(6, none), shape(FAR, none), shape(1, none)];
    assert_eq!(placed(&shapes, &[], |_, _| ()).islands, [], "there is no room");
    let relaxed = placed(&shapes, &[1, 3], |_, _| ());
    assert_eq!(relaxed.islands.iter().map(|island| island.block).collect::<Vec<_>>(), [3]);
    let offset = 4 + 2 + 10 + 10 + 2 + 6;
    assert_eq!(relaxed.relayed, [0, 2].map(|block| Relayed { block, is_jump: false, offset }));
    assert_eq!(relaxed.offsets[4], offset + Island::LEN);
    // A single branch does not pay for one.
    assert_eq!(placed(&[shapes[0], shapes[1], shapes[1], shapes[1], shapes[4], shapes[5]], &[1, 3], |_, _| ()).islands, []);
}

#[test]
fn an_island_does_not_put_a_short_branch_out_of_reach() {
    let none = OutTerminator::None;
    // The first branch just reaches the fifth block.
    let shapes = [
        shape(1, branch(4)),
        shape(4, branch(6)),
        shape(100, branch(6)),
        shape(127 - 4 - 6 - 100 - 6, none),
        shape(60, none),
        shape(FAR, none),
        shape(1, none),
    ];
    let relaxed = placed(&shapes, &[3], |_, _| ());
    assert!(!relaxed.is_long[0].taken);
    assert_eq!(relaxed.islands, []);
    assert_eq!(placed(&shapes, &[4], |_, _| ()).islands.len(), 0, "too far from the first of both");
}

#[test]
fn places_that_unwinders_tell_apart_and_loops_are_left_alone() {
    let shapes = [shape(4, jump(3)), shape(4, jump(3)), shape(FAR, OutTerminator::None), shape(1, OutTerminator::None)];
    assert_eq!(placed(&shapes, &[], |index, end| end.unwinding = Some(index as u64)).relayed, []);
    assert_eq!(placed(&shapes, &[], |_, end| end.unwinding = None).relayed, []);
    assert_eq!(placed(&shapes, &[], |_, end| end.is_spared = true).relayed, []);
    // What leaves a loop is in none.
    assert_eq!(placed(&shapes, &[], |index, end| end.is_spared = index != 3).relayed.len(), 1);
}

#[test]
fn all_branches_of_random_fragments_arrive_and_none_becomes_longer() {
    let mut random = 11u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    let (mut num_relayed, mut num_islands) = (0, 0);
    for _ in 0..400 {
        let count = 2 + next(120) as usize;
        let mut some = |_| {
            let target = next(count as u64 / 8 + 1) as usize;
            let terminator = match next(5) {
                0 => OutTerminator::None,
                1 => jump(target),
                2 => OutTerminator::Branch { condition: Condition(5), taken: to(target), jump: Some(to(count - 1)) },
                3 => OutTerminator::Jump(OutTarget::Fixed(Va(64 + next(3)))),
                _ => branch(target),
            };
            shape(1 + next(40) as u32, terminator)
        };
        let shapes: Vec<Shape> = (0..count).map(&mut some).collect();
        let closed: Vec<usize> = (0..count).filter(|index| shapes[*index].terminator == OutTerminator::None).collect();
        let relaxed = placed(&shapes, &closed, |index, end| end.is_spared = index % 7 == 0);
        let blocks = 0..count as u32;
        assert!(relaxed.len <= relax(&shapes, &blocks, 0).len);
        (num_relayed, num_islands) = (num_relayed + relaxed.relayed.len(), num_islands + relaxed.islands.len());
        for (index, shape) in shapes.iter().enumerate() {
            let wanted = targets(shape.terminator);
            for ((found, wanted), is_jump) in
                relaxed.short_branches(shape, index, &blocks).into_iter().zip([wanted.0, wanted.1]).zip([false, true])
            {
                let Some((end, offset)) = found else { continue };
                assert!(i8::try_from(i64::from(offset) - i64::from(end)).is_ok());
                assert_eq!(arrives(&relaxed, &shapes, offset, (index, is_jump)), wanted, "block {index}");
            }
        }
    }
    assert!(num_relayed > 3000 && num_islands > 300, "{num_relayed} {num_islands}");
}

/// Where a short branch leads that leads to an offset.
fn arrives(relaxed: &Relaxed, shapes: &[Shape], offset: u32, (block, is_jump): (usize, bool)) -> Option<OutTarget> {
    let is_relayed = relaxed.relayed.iter().any(|relayed| (relayed.block as usize, relayed.is_jump) == (block, is_jump));
    if !is_relayed {
        return relaxed.offsets.iter().position(|&at| at == offset).map(to);
    }
    if let Some(island) = relaxed.islands.iter().find(|island| relaxed.island_offset(shapes, island) == offset) {
        return Some(island.target);
    }
    let relay = (0..shapes.len()).find(|&index| relaxed.jump_offset(shapes, index) == offset)?;
    assert!(!relaxed.relayed.iter().any(|relayed| relayed.block as usize == relay && relayed.is_jump), "a relay with a relay");
    targets(shapes[relay].terminator).1
}

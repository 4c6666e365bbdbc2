//! What is known of a register that the output has put aside, where a segment ends and where ways join.

use super::*;

/// General registers by number, and the vector register in which one of them is.
const RSI: usize = 6;
const RDI: usize = 7;
const ASIDE: usize = 15;

/// What `rsi` holds, made of what it held.
type Make = fn(&mut Pool, Id) -> Id;

const WHOLE: Make = |_, id| id;
const HALF: Make = |pool, id| {
    let half = pool.trunc(id, 32);
    pool.zext(half, 64)
};
/// 32 bits of which nothing else is known.
const LOADED: Make = |pool, _| {
    let loaded = pool.make(Node::Class(1 << 30), 32);
    pool.zext(loaded, 64)
};

/// Facts where `rsi` is what `make` says in both programs, and the output has what some register holds put aside.
fn aside(make: Make, register: usize) -> Facts {
    let mut pool = Pool::default();
    let (mut input, mut output) = Facts::identity(None).start(&mut pool, false);
    let rsi = make(&mut pool, input.general[RSI]);
    (input.general[RSI], output.general[RSI]) = (rsi, rsi);
    let low = pool.zext(output.general[register], 128);
    output.vectors[ASIDE] = pool.insert(output.vectors[ASIDE], low, 0);
    Facts::end(&mut pool, &input, &output)
}

/// Whether the output has in a vector register what the input has in `rsi`, all 64 bits.
fn is_there(facts: &Facts) -> bool {
    let mut pool = Pool::default();
    let (input, output) = facts.start(&mut pool, false);
    pool.trunc(output.vectors[ASIDE], 64) == input.general[RSI]
}

/// Whether the vector register is the same above.
fn is_same_above(facts: &Facts) -> bool {
    let mut pool = Pool::default();
    let (input, output) = facts.start(&mut pool, false);
    matches!(replaced(&pool, output.vectors[ASIDE]), Some((above, _)) if above == input.vectors[ASIDE])
}

#[test]
fn what_is_put_aside_is_known_where_a_segment_ends() {
    for make in [WHOLE, HALF, LOADED] {
        let facts = aside(make, RSI);
        assert!(is_there(&facts) && is_same_above(&facts));
        assert!(!is_there(&aside(make, RDI)));
        assert!(facts.meet(&facts).is_none());
    }
}

#[test]
fn what_is_put_aside_on_both_ways_is_there_where_they_join_and_else_it_is_not() {
    let makes = [WHOLE, HALF, LOADED];
    for first in makes {
        for second in makes {
            let (one, other) = (aside(first, RSI), aside(second, RSI));
            let met = one.meet(&other).unwrap_or(one.clone());
            assert!(is_there(&met) && is_same_above(&met));
            for wrong in [aside(second, RDI), Facts::identity(None)] {
                assert!(!is_there(&one.meet(&wrong).unwrap_or(one.clone())));
                assert!(!is_there(&wrong.meet(&one).unwrap_or(wrong.clone())));
            }
        }
    }
}

/// Facts where both programs have zeros in the low part of a vector register, or something else.
fn cleared(is_cleared: bool) -> Facts {
    let mut pool = Pool::default();
    let (mut input, mut output) = Facts::identity(None).start(&mut pool, false);
    let low = if is_cleared { pool.constant(0, 128) } else { pool.make(Node::Class(1 << 30), 128) };
    input.vectors[ASIDE] = pool.insert(input.vectors[ASIDE], low, 0);
    output.vectors[ASIDE] = pool.insert(output.vectors[ASIDE], low, 0);
    Facts::end(&mut pool, &input, &output)
}

/// Whether the low part is zeros in both programs, and whether all of it is the same.
fn is_cleared(facts: &Facts) -> (bool, bool) {
    let mut pool = Pool::default();
    let (input, output) = facts.start(&mut pool, false);
    let mut is_zero = |id| {
        let low = pool.trunc(id, 128);
        pool.as_const(low) == Some(0)
    };
    let zeros = [input.vectors[ASIDE], output.vectors[ASIDE]].map(&mut is_zero);
    (zeros == [true, true], input.vectors[ASIDE] == output.vectors[ASIDE])
}

#[test]
fn zeros_in_a_vector_register_are_known_only_where_all_ways_have_them() {
    let (zeros, others) = (cleared(true), cleared(false));
    assert_eq!(is_cleared(&zeros), (true, true));
    assert_eq!(is_cleared(&others), (false, true));
    assert!(zeros.meet(&zeros).is_none());
    for (one, other) in [(&zeros, &others), (&others, &zeros)] {
        assert_eq!(is_cleared(&one.meet(other).unwrap_or(one.clone())), (false, true));
    }
    // Where the output has put something aside on one way, neither is known.
    let aside = aside(WHOLE, RSI);
    for (one, other) in [(&zeros, &aside), (&aside, &zeros)] {
        let met = one.meet(other).unwrap_or(one.clone());
        assert_eq!(is_cleared(&met), (false, false));
        assert!(!is_there(&met));
    }
}

/// Facts where `rsi` has 32 bits of something in both programs, and the output in `rdi` too if `is_copied`; and a slot is listed or not.
fn listed(is_copied: bool, slot: Option<u64>) -> Facts {
    let mut pool = Pool::default();
    let (mut input, mut output) = Facts::identity(None).start(&mut pool, false);
    let loaded = LOADED(&mut pool, 0);
    (input.general[RSI], output.general[RSI]) = (loaded, loaded);
    if is_copied {
        output.general[RDI] = loaded;
    }
    if let Some(value) = slot {
        let value = pool.constant(value, 64);
        input.slots.insert(-16, (64, value));
        output.slots.insert(-16, (64, value));
    }
    Facts::end(&mut pool, &input, &output)
}

#[test]
fn facts_are_refused_at_a_glance_only_if_meeting_others_would_change_them() {
    let mut all = vec![Facts::identity(None), Facts::identity(Some((STACK, -8))), cleared(true), cleared(false)];
    all.extend([WHOLE, HALF, LOADED].into_iter().flat_map(|make| [RSI, RDI].map(|register| aside(make, register))));
    for is_copied in [false, true] {
        all.extend([None, Some(0), Some(7)].map(|slot| listed(is_copied, slot)));
    }
    let met: Vec<Facts> = all.iter().flat_map(|one| all.iter().filter_map(|other| one.meet(other))).collect();
    all.extend(met);
    let (mut num_refused, mut num_changed) = (0, 0);
    for one in &all {
        for other in &all {
            let changes = one.meet(other).is_some();
            let is_refused = !one.may_be_less_than(other);
            assert!(changes || !is_refused, "{one:?} and {other:?}");
            num_changed += usize::from(changes);
            num_refused += usize::from(is_refused);
        }
    }
    assert!(num_refused * 2 > num_changed, "{num_refused} of {num_changed}");
}

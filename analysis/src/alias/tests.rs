//! The oracle on references made by hand: each reason, what takes it away, and a concrete twin of the arithmetic.

use lifter::Va;

use super::*;

fn reference(symbols: &mut Symbols, value: Value, size: u32) -> Reference {
    let form = symbols.form_of(&value);
    Reference {
        instruction: 0,
        at: Va(0),
        operand: 0,
        local: form.clone(),
        form,
        value,
        size,
        reads: false,
        writes: true,
        has_escaped: false,
        is_in_image: false,
        stretch: 0,
        local_kind: LocalKind::Other,
    }
}

fn judged(a: (Value, u32), b: (Value, u32)) -> Verdict {
    let mut symbols = Symbols::default();
    let (a, b) = (reference(&mut symbols, a.0, a.1), reference(&mut symbols, b.0, b.1));
    judge(&symbols, &a, &b)
}

const RDI: Base = Base::entry(7);
const RSI: Base = Base::entry(6);

fn slot(offset: i64) -> Value {
    Value::exact(Base::FRAME, offset)
}

/// Some way on from a base, of which the residues may be known.
fn somewhere(base: Base, residues: Residues) -> Value {
    Value { base, is_pure: true, residues, offsets: Interval::FULL }
}

#[test]
fn the_same_base_decides_by_distance_and_size() {
    let at = |offset| Value::exact(RDI, offset);
    assert_eq!(judged((at(8), 8), (at(8), 8)), Verdict::MustAlias);
    assert_eq!(judged((at(8), 8), (at(16), 8)), Verdict::NoAlias(Apart::Distance(-8)));
    assert_eq!(judged((at(16), 8), (at(8), 8)), Verdict::NoAlias(Apart::Distance(8)));
    assert_eq!(judged((at(8), 8), (at(12), 4)), Verdict::MayAlias(Doubt::Overlap(-4)));
    assert_eq!(judged((at(8), 4), (at(12), 4)), Verdict::NoAlias(Apart::Distance(-4)));
    assert_eq!(judged((at(8), 0), (at(16), 8)), Verdict::MayAlias(Doubt::UnknownSize));
}

#[test]
fn arguments_that_nothing_relates_may_be_the_same() {
    assert_eq!(judged((Value::exact(RDI, 0), 8), (Value::exact(RSI, 64), 8)), Verdict::MayAlias(Doubt::DifferentBases));
}

#[test]
fn residues_tell_fields_of_an_array_of_structures_apart() {
    let even = somewhere(RDI, Residues::multiples_of(16));
    let odd = even.add_constant(8);
    assert_eq!(judged((even, 8), (odd, 8)), Verdict::NoAlias(Apart::Residues));
    assert!(matches!(judged((even, 16), (odd, 8)), Verdict::MayAlias(_)), "sixteen bytes reach into the next field");
    assert!(matches!(judged((even, 8), (even, 8)), Verdict::MayAlias(_)), "two elements may be one");
}

#[test]
fn what_an_argument_points_to_is_older_than_the_frame() {
    assert_eq!(judged((slot(-16), 8), (Value::exact(RDI, 0), 8)), Verdict::NoAlias(Apart::OlderThanFrame));
    let impure = Value { is_pure: false, ..somewhere(RDI, Residues::ALL) };
    let mut symbols = Symbols::default();
    let (mut a, b) = (reference(&mut symbols, slot(-16), 8), reference(&mut symbols, impure, 8));
    assert_eq!(judge(&symbols, &a, &b), Verdict::NoAlias(Apart::FrameNotEscaped));
    a.has_escaped = true;
    assert!(matches!(judge(&symbols, &a, &b), Verdict::MayAlias(_)), "what was added may lead from one object to the other");
    assert!(
        matches!(judged((slot(8), 8), (Value::exact(RDI, 0), 8)), Verdict::MayAlias(_)),
        "an argument on the stack is the caller's"
    );
}

#[test]
fn a_frame_is_hidden_until_its_address_is_known_elsewhere() {
    let loaded = Value::exact(Base::defined(3, 0), 0);
    let mut symbols = Symbols::default();
    let (own, mut other) = (reference(&mut symbols, slot(-8), 8), reference(&mut symbols, loaded, 8));
    assert_eq!(judge(&symbols, &own, &other), Verdict::NoAlias(Apart::FrameNotEscaped));
    assert_eq!(judge(&symbols, &other, &own), Verdict::NoAlias(Apart::FrameNotEscaped));
    other.has_escaped = true;
    assert!(matches!(judge(&symbols, &own, &other), Verdict::MayAlias(_)));
    assert!(matches!(judge(&symbols, &other, &own), Verdict::MayAlias(_)));
}

#[test]
fn the_stack_is_not_the_image() {
    let global = Value::exact(Base::IMAGE, 0x4000);
    assert_eq!(judged((slot(-8), 8), (global, 8)), Verdict::NoAlias(Apart::DifferentMemory));
    assert_eq!(judged((somewhere(Base::FRAME, Residues::ALL), 8), (global, 8)), Verdict::NoAlias(Apart::DifferentMemory));
    let impure = Value { is_pure: false, ..somewhere(Base::IMAGE, Residues::ALL) };
    let mut symbols = Symbols::default();
    let (mut a, b) = (reference(&mut symbols, slot(-8), 8), reference(&mut symbols, impure, 8));
    a.has_escaped = true;
    assert!(matches!(judge(&symbols, &a, &b), Verdict::MayAlias(_)));
}

#[test]
fn no_verdict_contradicts_two_numbers_that_the_values_describe() {
    let intervals = [Interval::FULL, Interval::of(-24), Interval::new(-8, 8), Interval::new(0, 100)];
    let residues = [Residues::ALL, Residues::multiples_of(16), Residues::of(40), Residues::of_range(4, 9)];
    let values: Vec<Value> = intervals
        .iter()
        .flat_map(|&offsets| residues.map(|residues| Value { base: RDI, is_pure: true, residues, offsets }))
        .collect();
    let mut claims = 0;
    for (a, b) in values.iter().flat_map(|a| values.iter().map(move |b| (a, b))) {
        for (a_size, b_size) in [(1u32, 1u32), (8, 8), (4, 16), (16, 1)] {
            let verdict = judged((*a, a_size), (*b, b_size));
            let described = |v: &Value| (-130i64..=130).filter(|&n| v.describes(0, n as u64)).collect::<Vec<_>>();
            let overlap = |x: i64, y: i64| x < y + i64::from(b_size) && y < x + i64::from(a_size);
            let pairs = || described(a).into_iter().flat_map(|x| described(b).into_iter().map(move |y| (x, y)));
            match verdict {
                Verdict::NoAlias(_) => assert!(!pairs().any(|(x, y)| overlap(x, y)), "{a:?} {a_size} {b:?} {b_size}: {verdict}"),
                Verdict::MustAlias => assert!(pairs().all(|(x, y)| x == y), "{a:?} {b:?}: {verdict}"),
                Verdict::MayAlias(_) => continue,
            }
            claims += 1;
        }
    }
    assert!(claims > 100, "only {claims} pairs were decided at all");
}

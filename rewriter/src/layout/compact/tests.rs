//! Small graphs whose best order is told by hand, and random ones whose order has to be one.

use super::*;

fn piece(body: u32, end: End) -> Piece {
    Piece { body, align: 1, end }
}

fn graph(pieces: Vec<Piece>) -> Graph {
    let chains = chains_of(&pieces, 0);
    Graph { pieces, chains, seams: Seams::default() }
}

#[test]
fn an_error_path_comes_to_where_its_branches_reach() {
    // Two long blocks between the branches and what they lead to.
    let graph = graph(vec![
        piece(10, End::Branch(Some(4), Some(1))),
        piece(10, End::Branch(Some(4), Some(2))),
        piece(5, End::Stop),
        piece(400, End::Stop),
        piece(20, End::Jump(Some(3))),
    ]);
    let (order, len) = graph.best();
    assert_eq!(order, [0, 1, 2, 4, 3]);
    assert_eq!(len, 12 + 12 + 5 + 20 + 400, "the jump to what follows is gone, too");
}

#[test]
fn what_runs_on_stays_together() {
    let graph = graph(vec![
        piece(10, End::Branch(Some(3), Some(1))),
        piece(200, End::Jump(Some(2))),
        piece(10, End::Stop),
        piece(10, End::Jump(Some(0))),
        piece(10, End::Branch(Some(0), Some(5))),
        piece(10, End::Stop),
    ]);
    assert_eq!(graph.chains, [(0, 3), (3, 4), (4, 6)]);
    let (order, _) = graph.best();
    let is_after = |block: u32, before: u32| order.windows(2).any(|pair| pair == [before, block]);
    assert!(is_after(1, 0) && is_after(2, 1) && is_after(5, 4), "{order:?}");
}

#[test]
fn blocks_with_the_same_call_site_come_side_by_side_unless_branches_are_worth_more() {
    let pieces = |third: u32| {
        vec![
            piece(10, End::Branch(Some(2), Some(1))),
            piece(10, End::Stop),
            piece(100, End::Stop),
            piece(third, End::Stop),
            piece(100, End::Stop),
        ]
    };
    // Nothing comes from the first two; the others have one, another, and the first one again.
    let sites = [0, 0, 2, 3, 2];
    let best = |pieces: Vec<Piece>, sites: &[u8]| {
        let chains = chains_of(&pieces, 0);
        Graph { pieces, chains, seams: Seams::with_sites(sites) }.best().0
    };
    let order = best(pieces(100), &sites);
    let place = |piece: u32| order.iter().position(|&other| other == piece).unwrap();
    assert_eq!(place(2).abs_diff(place(4)), 1, "{order:?}");
    // Where there is none in common, all stay as they were, as without tables.
    assert_eq!(best(pieces(100), &[0, 0, 2, 3, 4]), [0, 1, 2, 3, 4]);
    assert_eq!(best(pieces(100), &[0; 5]), [0, 1, 2, 3, 4]);
    // Code without exceptions between two blocks of one call site costs nothing.
    let seams = Seams::with_sites(&[2, 0, 2, 1, 2]);
    assert_eq!(seams.total(&[0, 1, 2]), 0);
    assert_eq!(seams.total(&[0, 3, 2]), seams.total(&[3, 2]));
}

#[test]
fn what_ran_keeps_its_order_and_what_did_not_comes_to_where_its_branches_reach() {
    let pieces = vec![
        piece(10, End::Branch(Some(5), Some(2))),
        piece(10, End::Jump(Some(0))),
        piece(10, End::Branch(Some(5), Some(1))),
        piece(400, End::Jump(Some(0))),
        piece(20, End::Stop),
        piece(20, End::Jump(Some(4))),
    ];
    let chains = chains_of(&pieces, 3);
    assert_eq!(chains, [(0, 3), (3, 4), (4, 5), (5, 6)], "a jump within what ran, and one that leads out of it");
    let (order, _) = Graph { pieces, chains, seams: Seams::default() }.best();
    assert_eq!(order, [0, 1, 2, 5, 4, 3]);
}

#[test]
fn a_random_function_gets_no_longer_and_keeps_each_block_once() {
    let mut random = 11u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((random >> 33) % below) as u32
    };
    for _ in 0..60 {
        let count = 1 + next(80);
        let pieces: Vec<Piece> = (0..count)
            .map(|at| {
                let any = Some(next(u64::from(count)));
                let following = (at + 1 < count).then_some(at + 1);
                let end = match next(5) {
                    0 => End::Stop,
                    1 => End::Jump(any),
                    2 => End::Loop(any, following),
                    _ => End::Branch(any, following),
                };
                piece(next(60), end)
            })
            .collect();
        let graph = graph(pieces);
        let in_order: Vec<u32> = (0..count).collect();
        let (mut order, len) = graph.best();
        assert!(len <= graph.measure(&in_order).len);
        assert_eq!(len, graph.measure(&order).len);
        assert_eq!(order[0], 0);
        order.sort_unstable();
        assert_eq!(order, in_order);
    }
}

/// Pieces of random lengths whose branches lead anywhere.
fn random_graph(state: &mut u64) -> Graph {
    let mut next = |below: u64| {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) % below
    };
    let count = 3 + next(40) as u32;
    let mut pieces = Vec::new();
    for at in 0..count {
        let mut target = || (next(5) > 0).then(|| next(u64::from(count)) as u32);
        let (taken, other) = (target(), target());
        let runs_on = (at + 1 < count).then_some(at + 1);
        let end = match next(5) {
            0 => End::Stop,
            1 => End::Jump(taken),
            2 => End::Loop(taken, runs_on),
            3 => End::Branch(taken, other),
            _ => End::Branch(taken, runs_on),
        };
        pieces.push(piece(next(60) as u32, end));
    }
    graph(pieces)
}

#[test]
fn what_an_order_is_worth_stays_known_while_chains_change_places() {
    let mut state = 7;
    for _ in 0..300 {
        let graph = random_graph(&mut state);
        let order: Vec<u32> = (0..graph.chains.len() as u32).collect();
        let model = graph.model(&graph.measure(&graph.pieces_of(&order)));
        let mut search = Search::new(&model, order);
        let before = search.worth();
        while search.round(&mut 0) {
            assert_eq!(search.worth(), Search::new(&model, search.order.clone()).worth());
        }
        assert!(search.worth() >= before);
        let mut order = search.order.clone();
        order.sort_unstable();
        assert!(order.into_iter().eq(0..graph.chains.len() as u32), "a permutation");
    }
}

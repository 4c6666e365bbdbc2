//! Small graphs whose best order is told by hand, and random ones whose order has to be one.

use super::*;

fn piece(body: u32, end: End) -> Piece {
    Piece { body, align: 1, end }
}

fn graph(pieces: Vec<Piece>) -> Graph {
    let chains = chains_of(&pieces);
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

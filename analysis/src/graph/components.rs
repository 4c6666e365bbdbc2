//! Strongly connected components of a graph, and in which order they depend on each other.
//!
//! Tarjan's algorithm (*Depth-First Search and Linear Graph Algorithms*, 1972) with a stack of its own, since call chains are deeper than a thread's stack
//! is long. Components come out callees first; `height` is the longest way down, `depth` the longest way up, and components of equal height
//! (or depth) don't depend on each other.

/// Components of a graph whose vertices are numbered from zero.
#[derive(Clone, Debug, Default)]
pub struct Components {
    /// By vertex, its component; components are numbered callees first.
    pub of: Vec<u32>,
    /// By component, its vertices in the order in which the walk left them.
    pub members: Vec<Vec<u32>>,
    /// By component, one more than the largest height of a component that it leads to.
    pub height: Vec<u32>,
    /// By component, one more than the largest depth of a component that leads to it.
    pub depth: Vec<u32>,
}

impl Components {
    /// `successors(v)` are the vertices that `v` leads to.
    pub fn find<'g>(count: usize, successors: impl Fn(u32) -> &'g [u32]) -> Self {
        const UNSEEN: u32 = u32::MAX;
        let mut index = vec![UNSEEN; count];
        let mut low = vec![0u32; count];
        let mut is_open = vec![false; count];
        let mut open: Vec<u32> = Vec::new();
        let mut next_index = 0;
        let mut components = Components { of: vec![0; count], ..Components::default() };
        let mut walk: Vec<(u32, usize)> = Vec::new();
        for root in 0..count as u32 {
            if index[root as usize] != UNSEEN {
                continue;
            }
            walk.push((root, 0));
            while let Some((vertex, position)) = walk.pop() {
                let at = vertex as usize;
                if position == 0 {
                    (index[at], low[at]) = (next_index, next_index);
                    next_index += 1;
                    is_open[at] = true;
                    open.push(vertex);
                }
                let list = successors(vertex);
                let mut position = position;
                let mut descends = false;
                while let Some(&next) = list.get(position) {
                    position += 1;
                    if index[next as usize] == UNSEEN {
                        walk.push((vertex, position));
                        walk.push((next, 0));
                        descends = true;
                        break;
                    }
                    if is_open[next as usize] {
                        low[at] = low[at].min(index[next as usize]);
                    }
                }
                if descends {
                    continue;
                }
                if let Some(&(parent, _)) = walk.last() {
                    low[parent as usize] = low[parent as usize].min(low[at]);
                }
                if low[at] == index[at] {
                    components.close(&mut open, &mut is_open, vertex);
                }
            }
        }
        components.rank(&successors);
        components
    }

    fn close(&mut self, open: &mut Vec<u32>, is_open: &mut [bool], root: u32) {
        let start = open.iter().rposition(|&v| v == root).unwrap_or(0);
        // Those that were opened last were left first.
        let members: Vec<u32> = open.drain(start..).rev().collect();
        for &member in &members {
            is_open[member as usize] = false;
            self.of[member as usize] = self.members.len() as u32;
        }
        self.members.push(members);
    }

    fn rank<'g>(&mut self, successors: &impl Fn(u32) -> &'g [u32]) {
        let count = self.members.len();
        (self.height, self.depth) = (vec![0; count], vec![0; count]);
        for component in 0..count {
            for &member in &self.members[component] {
                for &next in successors(member) {
                    let below = self.of[next as usize] as usize;
                    if below != component {
                        self.height[component] = self.height[component].max(self.height[below] + 1);
                    }
                }
            }
        }
        for component in (0..count).rev() {
            for &member in &self.members[component] {
                for &next in successors(member) {
                    let below = self.of[next as usize] as usize;
                    if below != component {
                        self.depth[below] = self.depth[below].max(self.depth[component] + 1);
                    }
                }
            }
        }
    }

    /// Vertices by the height of their components, those of one component together.
    pub fn by_height(&self) -> Vec<Vec<u32>> {
        self.by_level(&self.height)
    }
    /// Vertices by the depth of their components, those of one component together and callers before callees.
    pub fn by_depth(&self) -> Vec<Vec<u32>> {
        let mut levels = self.by_level(&self.depth);
        levels.iter_mut().for_each(|level| level.reverse());
        levels
    }
    fn by_level(&self, level: &[u32]) -> Vec<Vec<u32>> {
        let count = level.iter().max().map_or(0, |&top| top as usize + 1);
        let mut levels = vec![Vec::new(); count];
        for (component, members) in self.members.iter().enumerate() {
            levels[level[component] as usize].extend(members);
        }
        levels
    }
}

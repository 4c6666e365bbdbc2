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
    /// The vertices of all components, side by side: nearly all have one.
    members: Vec<u32>,
    /// By component, where its vertices end.
    ends: Vec<u32>,
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
        for member in open.drain(start..).rev() {
            is_open[member as usize] = false;
            self.of[member as usize] = self.ends.len() as u32;
            self.members.push(member);
        }
        self.ends.push(self.members.len() as u32);
    }

    pub fn count(&self) -> usize {
        self.ends.len()
    }

    /// The vertices of a component in the order in which the walk left them.
    pub fn members(&self, component: u32) -> &[u32] {
        let start = component.checked_sub(1).map_or(0, |before| self.ends[before as usize]);
        &self.members[start as usize..self.ends[component as usize] as usize]
    }

    fn rank<'g>(&mut self, successors: &impl Fn(u32) -> &'g [u32]) {
        let count = self.count();
        let (mut height, mut depth) = (vec![0; count], vec![0; count]);
        let below = |component: u32| {
            let next = self.members(component).iter().flat_map(|&member| successors(member));
            next.map(|&next| self.of[next as usize] as usize).filter(move |&below| below != component as usize)
        };
        for component in 0..count as u32 {
            let highest = below(component).map(|below| height[below] + 1).max();
            height[component as usize] = highest.unwrap_or(0);
        }
        for component in (0..count as u32).rev() {
            let own = depth[component as usize] + 1;
            below(component).for_each(|below| depth[below] = own.max(depth[below]));
        }
        (self.height, self.depth) = (height, depth);
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
        for component in 0..self.count() as u32 {
            levels[level[component as usize] as usize].extend(self.members(component));
        }
        levels
    }
}

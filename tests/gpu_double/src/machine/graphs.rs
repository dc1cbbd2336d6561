//! Graphs that were captured, and their launches: each node becomes an operation again, branches get streams of their own.

use super::{Machine, Place, Task};
use crate::code::Code;
use crate::memory::Clock;

/// Kinds of handles.
const GRAPH: u64 = 0xA;
const EXECUTABLE: u64 = 0xB;

/// One operation of a graph, with what comes before it: how many nodes of each branch.
pub(super) struct Node {
    pub branch: u32,
    pub clock: Clock,
    pub task: Task,
    pub name: String,
}

/// Nodes in an order that branches allow.
pub(super) struct Graph {
    nodes: Vec<Node>,
    branches: usize,
}

/// A graph with the streams that its launches use for all branches but the first.
pub(super) struct Executable {
    graph: Graph,
    streams: Vec<u32>,
}

impl Machine {
    pub(super) fn add_graph(&mut self, nodes: Vec<Node>, branches: usize) -> u64 {
        let handle = self.handle(GRAPH);
        self.graphs.insert(handle, Graph { nodes, branches });
        handle
    }

    /// Number of nodes of a graph.
    pub fn graph_nodes(&self, graph: u64) -> Result<usize, Code> {
        Ok(self.graphs.get(&graph).ok_or(Code::InvalidValue)?.nodes.len())
    }

    /// Makes a graph ready to be launched, by handle.
    pub fn instantiate(&mut self, graph: u64) -> Result<u64, Code> {
        let graph = self.graphs.get(&graph).ok_or(Code::InvalidValue)?.again();
        let handle = self.handle(EXECUTABLE);
        self.executables.insert(handle, Executable { graph, streams: Vec::new() });
        Ok(handle)
    }

    /// A graph ends; what was made ready stays.
    pub fn destroy_graph(&mut self, graph: u64) -> Result<(), Code> {
        self.graphs.remove(&graph).map(|_| ()).ok_or(Code::InvalidValue)
    }

    /// Destroys an executable graph; launches of it that wait are still executed.
    pub fn destroy_executable(&mut self, executable: u64) -> Result<(), Code> {
        self.executables.remove(&executable).map(|_| ()).ok_or(Code::InvalidValue)
    }

    /// Appends all nodes of a graph to a stream and to those of its branches.
    pub fn launch_graph(&mut self, executable: u64, stream: u32) -> Result<(), Code> {
        self.forbidden_on(stream)?;
        self.append(stream, Task::Nothing, String::from("the begin of a graph"))?;
        let mut chosen = self.executables.remove(&executable).ok_or(Code::InvalidValue)?;
        self.give_streams(&mut chosen, stream);
        let streams: Vec<u32> =
            [stream].into_iter().chain(chosen.streams.iter().copied()).collect();
        let begin = self.last(stream);
        let bases: Vec<u32> = streams.iter().map(|s| self.last(*s).tick).collect();
        for other in &streams[1..] {
            self.follow(*other, &begin);
        }
        for node in &chosen.graph.nodes {
            self.launch_node(node, &streams, &bases);
        }
        for other in &streams[1..] {
            let end = self.last(*other);
            self.follow(stream, &end);
        }
        self.push(stream, Task::Nothing, String::from("the end of a graph"));
        self.executables.insert(executable, chosen);
        Ok(())
    }

    fn give_streams(&mut self, executable: &mut Executable, stream: u32) {
        let device = self.device_of(stream);
        while executable.streams.len() + 1 < executable.graph.branches {
            executable.streams.push(self.hidden_stream(device));
        }
    }

    fn launch_node(&mut self, node: &Node, streams: &[u32], bases: &[u32]) {
        let stream = streams[node.branch as usize];
        for (branch, other) in (0..).zip(streams) {
            let before = node.clock.of(branch);
            if branch != node.branch && before > 0 {
                let place = self.place(*other, bases[branch as usize] + before);
                self.follow(stream, &place);
            }
        }
        self.push(stream, node.task.again(), node.name.clone());
    }

    /// A place of an operation that was just appended.
    fn place(&self, stream: u32, tick: u32) -> Place {
        let mut queued = self.streams[stream as usize].queue.iter();
        let found = queued.find(|operation| operation.tick == tick);
        let clock = found.map(|operation| operation.clock.clone()).unwrap_or_default();
        Place { stream, tick, clock }
    }
}

impl Graph {
    fn again(&self) -> Graph {
        let nodes = self.nodes.iter().map(|node| Node {
            branch: node.branch,
            clock: node.clock.clone(),
            task: node.task.again(),
            name: node.name.clone(),
        });
        Graph { nodes: nodes.collect(), branches: self.branches }
    }
}

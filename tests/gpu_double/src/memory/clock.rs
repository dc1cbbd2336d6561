//! Clocks, which say what happens before what: streams count their operations, and a clock holds how many of each
//! stream's are known to be done.

/// A clock: how many operations of each stream come before something.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clock(Vec<u32>);

impl Clock {
    /// Whether the `tick`-th operation of a stream comes before.
    pub fn covers(&self, stream: u32, tick: u32) -> bool {
        self.of(stream) >= tick
    }

    /// The number of operations of a stream that come before.
    pub fn of(&self, stream: u32) -> u32 {
        self.0.get(stream as usize).copied().unwrap_or(0)
    }

    /// Takes in that the `tick`-th operation of a stream, and all before it there, come before.
    pub fn advance(&mut self, stream: u32, tick: u32) {
        if self.0.len() <= stream as usize {
            self.0.resize(stream as usize + 1, 0);
        }
        let known = &mut self.0[stream as usize];
        *known = (*known).max(tick);
    }

    /// Takes in all that another clock knows.
    pub fn join(&mut self, other: &Clock) {
        for (stream, tick) in other.0.iter().enumerate() {
            self.advance(stream as u32, *tick);
        }
    }
}

/// All operations so far: for each number the stream, its place there, and what it is called in messages.
#[derive(Debug)]
pub struct Operations(Vec<(u32, u32, String)>);

impl Default for Operations {
    /// Number 0 is nobody's.
    fn default() -> Self {
        Operations(vec![(0, 0, String::from("nothing"))])
    }
}

impl Operations {
    /// Notes an operation and returns its number.
    pub fn add(&mut self, stream: u32, tick: u32, name: String) -> u32 {
        self.0.push((stream, tick, name));
        (self.0.len() - 1) as u32
    }

    /// The number that was given last.
    pub fn latest(&self) -> u32 {
        (self.0.len() - 1) as u32
    }

    /// Whether an operation comes before what has this clock.
    pub fn before(&self, operation: u32, clock: &Clock) -> bool {
        let (stream, tick, _) = &self.0[operation as usize];
        clock.covers(*stream, *tick)
    }

    /// Stream of an operation, and its place there.
    pub fn place(&self, operation: u32) -> (u32, u32) {
        let (stream, tick, _) = &self.0[operation as usize];
        (*stream, *tick)
    }

    /// An operation for a message: name, stream and place.
    pub fn describe(&self, operation: u32) -> String {
        let (stream, tick, name) = &self.0[operation as usize];
        format!("{name} (operation {tick} of stream {stream})")
    }

    /// The operation with this place in its stream, for a message.
    pub fn find(&self, stream: u32, tick: u32) -> String {
        let found = self.0.iter().rposition(|(s, t, _)| *s == stream && *t == tick);
        found.map_or_else(|| String::from("an operation"), |at| self.describe(at as u32))
    }
}

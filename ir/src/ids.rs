//! Typed ids: `u32` newtypes whose `Display` is the text form (`%3`, `n7`).

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The id of the element at `index` of its arena.
            pub fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("an arena holds fewer than 2^32 elements"))
            }

            /// The index into the arena.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

id!(
    /// A value (tensor) of a graph.
    ValueId, "%");
id!(
    /// A node (one application of an op) of a graph.
    NodeId, "n");
id!(
    /// A pipeline stage.
    StageId, "stage");
id!(
    /// A layer of a model.
    LayerId, "layer");
id!(
    /// An actor of a program.
    ActorId, "a");
id!(
    /// A layout of a plan.
    LayoutId, "layout");
id!(
    /// A register of a program.
    RegisterId, "r");
id!(
    /// A program: what ranks that do the same share.
    ProgramId, "program");
id!(
    /// A group of ranks that communicate.
    GroupId, "group");
id!(
    /// A channel between two sets of ranks.
    ChannelId, "channel");

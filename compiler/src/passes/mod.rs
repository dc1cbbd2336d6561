//! The passes from a user's graph to a training graph with stages and rates: free functions, one a file, that
//! [`crate::pipeline`] lists in order. None chooses a layout: that is the planner's.

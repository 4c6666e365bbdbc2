//! What holds of a lifted program: graphs and liveness.

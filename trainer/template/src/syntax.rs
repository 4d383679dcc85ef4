//! The syntax of templates: tokens of a text, the parser, and the tree that it builds.

pub(crate) mod ast;
pub(crate) mod lexer;
pub(crate) mod parser;

//! Arithmetic expansion `$(( ))` on 64-bit integers that wrap around, as in bash.

use brush_parser::ast::{ArithmeticExpr, ArithmeticTarget, BinaryOperator, UnaryOperator};

use super::{Shell, ShellError, limits, nesting};

impl Shell {
    /// Computes the value of an expression; a text that is not a number counts as 0, as in bash.
    pub(super) fn compute(&mut self, expression: &str) -> Result<i64, ShellError> {
        let expanded = self.text(expression)?;
        if expanded.len() > limits::MAX_EXPRESSION_BYTES {
            return Err(ShellError::Large(limits::MAX_EXPRESSION_BYTES));
        }
        limits::check(&expanded)?;
        nesting::check_expression(&expanded)?;
        let Ok(tree) = brush_parser::arithmetic::parse(&expanded) else {
            self.scope.note(format!("`{expanded}` is no expression of numbers"));
            return Ok(0);
        };
        Ok(self.value_of(&tree))
    }

    fn value_of(&mut self, expression: &ArithmeticExpr) -> i64 {
        match expression {
            ArithmeticExpr::Literal(value) => *value,
            ArithmeticExpr::Reference(target) => self.value_at(target),
            ArithmeticExpr::UnaryOp(operator, operand) => {
                let value = self.value_of(operand);
                match operator {
                    UnaryOperator::UnaryPlus => value,
                    UnaryOperator::UnaryMinus => value.wrapping_neg(),
                    UnaryOperator::BitwiseNot => !value,
                    UnaryOperator::LogicalNot => i64::from(value == 0),
                }
            }
            ArithmeticExpr::BinaryOp(operator, left, right) => {
                let (left, right) = (self.value_of(left), self.value_of(right));
                self.combine(operator, left, right)
            }
            ArithmeticExpr::Conditional(condition, then, other) => {
                let holds = self.value_of(condition) != 0;
                self.value_of(if holds { then } else { other })
            }
            ArithmeticExpr::Assignment(target, value) => {
                let value = self.value_of(value);
                self.assign_number(target, value)
            }
            ArithmeticExpr::BinaryAssignment(operator, target, value) => {
                let (before, by) = (self.value_at(target), self.value_of(value));
                let value = self.combine(operator, before, by);
                self.assign_number(target, value)
            }
            ArithmeticExpr::UnaryAssignment(_, target) => {
                self.scope.note("++ and -- are left out".to_owned());
                self.value_at(target)
            }
        }
    }

    fn combine(&mut self, operator: &BinaryOperator, left: i64, right: i64) -> i64 {
        let exponent = || u32::try_from(right).unwrap_or(0);
        match operator {
            BinaryOperator::Power => left.wrapping_pow(exponent()),
            BinaryOperator::Multiply => left.wrapping_mul(right),
            BinaryOperator::Divide | BinaryOperator::Modulo if right == 0 => {
                self.scope.note("a division by 0".to_owned());
                0
            }
            BinaryOperator::Divide => left.wrapping_div(right),
            BinaryOperator::Modulo => left.wrapping_rem(right),
            BinaryOperator::Comma => right,
            BinaryOperator::Add => left.wrapping_add(right),
            BinaryOperator::Subtract => left.wrapping_sub(right),
            BinaryOperator::ShiftLeft => left.wrapping_shl(exponent()),
            BinaryOperator::ShiftRight => left.wrapping_shr(exponent()),
            BinaryOperator::LessThan => i64::from(left < right),
            BinaryOperator::LessThanOrEqualTo => i64::from(left <= right),
            BinaryOperator::GreaterThan => i64::from(left > right),
            BinaryOperator::GreaterThanOrEqualTo => i64::from(left >= right),
            BinaryOperator::Equals => i64::from(left == right),
            BinaryOperator::NotEquals => i64::from(left != right),
            BinaryOperator::BitwiseAnd => left & right,
            BinaryOperator::BitwiseXor => left ^ right,
            BinaryOperator::BitwiseOr => left | right,
            BinaryOperator::LogicalAnd => i64::from(left != 0 && right != 0),
            BinaryOperator::LogicalOr => i64::from(left != 0 || right != 0),
        }
    }

    fn value_at(&mut self, target: &ArithmeticTarget) -> i64 {
        let text = match target {
            ArithmeticTarget::Variable(name) => {
                self.scope.variables.get(name).map_or("", |variable| variable.scalar()).to_owned()
            }
            ArithmeticTarget::ArrayElement(name, index) => {
                let index = usize::try_from(self.value_of(index)).unwrap_or(usize::MAX);
                let elements = self.scope.variables.get(name).map(|variable| variable.elements());
                elements.and_then(|elements| elements.get(index).cloned()).unwrap_or_default()
            }
        };
        text.trim().parse().unwrap_or(0)
    }

    fn assign_number(&mut self, target: &ArithmeticTarget, value: i64) -> i64 {
        if let ArithmeticTarget::Variable(name) = target {
            self.scope.set(name, value.to_string());
        }
        value
    }
}

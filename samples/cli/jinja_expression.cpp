// Expressions: evaluated while they are read, by recursive descent.
#include <cctype>

#include "cli_session.h"
#include "jinja_functions.h"

namespace cairn_cli::jinja {
namespace {

constexpr int kMaxDepth = 64;

/// One level further down, for as long as it lives.
class Deeper {
 public:
  explicit Deeper(int& depth) : depth_(depth) {
    if (depth == kMaxDepth) refuse("more than 64 levels of an expression");
    ++depth;
  }
  ~Deeper() { --depth_; }
  Deeper(const Deeper&) = delete;

 private:
  int& depth_;
};

class Parser {
 public:
  Parser(std::string_view text, Environment& environment) : text_(text), environment_(environment) {}

  Value whole() {
    Value value = conditional();
    skip_blanks();
    if (at_ != text_.size()) refuse("'" + std::string(text_.substr(at_, 40)) + "'");
    return value;
  }

 private:
  void skip_blanks() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool accept(std::string_view symbol) {
    skip_blanks();
    if (text_.substr(at_, symbol.size()) != symbol) return false;
    at_ += symbol.size();
    return true;
  }
  void expect(std::string_view symbol) {
    if (!accept(symbol))
      refuse("'" + std::string(text_.substr(at_, 40)) + "' (expected '" + std::string(symbol) + "')");
  }
  bool accept_word(std::string_view word) {
    skip_blanks();
    const std::size_t end = at_ + word.size();
    if (text_.substr(at_, word.size()) != word) return false;
    if (end < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[end])) || text_[end] == '_')) return false;
    at_ = end;
    return true;
  }
  std::string name() {
    skip_blanks();
    const std::size_t begin = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) ++at_;
    if (begin == at_) refuse("'" + std::string(text_.substr(at_, 40)) + "'");
    return std::string(text_.substr(begin, at_ - begin));
  }

  /// Both sides of `and`, `or` and `if` are read; what Jinja would not run is read with errors of values switched off.
  template <class Read>
  Value quietly(bool is_quiet, Read read) {
    quiet_ += is_quiet ? 1 : 0;
    Value value = read();
    quiet_ -= is_quiet ? 1 : 0;
    return value;
  }

  Value conditional() {
    const std::size_t begin = at_;
    Value value = quietly(true, [&] { return disjunction(); });
    if (!accept_word("if")) {
      if (quiet_ > 0) return value;
      at_ = begin;
      return disjunction();
    }
    const bool is_chosen = is_true(disjunction());
    const std::size_t after = at_;
    if (is_chosen && quiet_ == 0) {
      at_ = begin;
      value = disjunction();
      at_ = after;
    }
    if (!accept_word("else")) return is_chosen ? value : Value();
    const Deeper deeper(depth_);
    Value other = quietly(is_chosen, [&] { return conditional(); });
    return is_chosen ? value : other;
  }
  Value disjunction() {
    Value value = conjunction();
    while (accept_word("or")) {
      Value right = quietly(is_true(value), [&] { return conjunction(); });
      if (!is_true(value)) value = std::move(right);
    }
    return value;
  }
  Value conjunction() {
    Value value = negation();
    while (accept_word("and")) {
      Value right = quietly(!is_true(value), [&] { return negation(); });
      if (is_true(value)) value = std::move(right);
    }
    return value;
  }
  Value negation() {
    if (!accept_word("not")) return comparison();
    const Deeper deeper(depth_);
    return !is_true(negation());
  }

  Value comparison() {
    Value left = sum();
    for (;;) {
      if (accept("=="))
        left = left == sum();
      else if (accept("!="))
        left = left != sum();
      else if (accept("<="))
        left = left <= sum();
      else if (accept(">="))
        left = left >= sum();
      else if (accept("<"))
        left = left < sum();
      else if (accept(">"))
        left = left > sum();
      else if (accept_word("in"))
        left = contains(sum(), left);
      else if (accept_word("is")) {
        const bool is_negated = accept_word("not");
        left = passes_test(left, name(), was_defined_) != is_negated;
      } else {
        const std::size_t begin = at_;
        if (!accept_word("not") || !accept_word("in")) {
          at_ = begin;
          return left;
        }
        left = !contains(sum(), left);
      }
    }
  }
  Value sum() {
    Value left = product();
    for (;;) {
      if (accept("~")) {
        left = printed(left) + printed(product());
        environment_.budget.spend(left);
      } else if (accept("+")) {
        const Value right = product();
        if (left.is_string() && right.is_string())
          left = left.get<std::string>() + right.get<std::string>();
        else if (left.is_number_integer() && right.is_number_integer())
          left = calculated(integer(left), '+', integer(right));
        else if (left.is_array() && right.is_array())
          left.insert(left.end(), right.begin(), right.end());
        else if (quiet_ == 0)
          refuse("'+' of these values");
        environment_.budget.spend(left);
      } else if (accept("-")) {
        left = calculated(integer(left), '-', integer(product()));
      } else {
        return left;
      }
    }
  }
  Value product() {
    Value left = unary();
    for (;;) {
      if (accept("*"))
        left = calculated(integer(left), '*', integer(unary()));
      else if (accept("%")) {
        const std::int64_t divisor = integer(unary());
        if (divisor == 0 && quiet_ == 0) refuse("division by zero");
        left = divisor == 0 || divisor == -1 ? 0 : integer(left) % divisor;
      } else
        return left;
    }
  }
  std::int64_t calculated(std::int64_t left, char sign, std::int64_t right) const {
    std::int64_t result = 0;
    const bool overflows = sign == '+'   ? __builtin_add_overflow(left, right, &result)
                           : sign == '-' ? __builtin_sub_overflow(left, right, &result)
                                         : __builtin_mul_overflow(left, right, &result);
    if (overflows && quiet_ == 0) refuse("a number of more than 64 bits");
    return overflows ? 0 : result;
  }
  std::int64_t integer(const Value& value) const {
    if (!value.is_number_integer() && quiet_ == 0) refuse("arithmetic on this value");
    return value.is_number_integer() ? value.get<std::int64_t>() : 0;
  }
  Value unary() {
    if (accept("-")) {
      const Deeper deeper(depth_);
      return calculated(0, '-', integer(unary()));
    }
    Value value = postfix();
    while (accept("|")) {
      const std::string filter = name();
      const Arguments arguments = accept("(") ? read_arguments() : Arguments();
      if (quiet_ == 0) value = made(filtered(value, filter, arguments));
    }
    return value;
  }

  Arguments read_arguments() {
    Arguments arguments;
    if (accept(")")) return arguments;
    std::size_t size_bytes = 0;
    do {
      const std::size_t begin = at_;
      skip_blanks();
      if (at_ < text_.size() && (std::isalpha(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_')) {
        const std::string key = name();
        skip_blanks();
        if (text_.substr(at_, 1) == "=" && text_.substr(at_, 2) != "==") {
          ++at_;
          Value& argument = arguments.named[key] = conditional();
          check_text_size(size_bytes += bounded_size(argument));
          continue;
        }
      }
      at_ = begin;
      arguments.plain.push_back(conditional());
      check_text_size(size_bytes += bounded_size(arguments.plain.back()));
    } while (accept(","));
    expect(")");
    return arguments;
  }

  Value made(Value value) {
    environment_.budget.spend(value);
    return value;
  }
  Value postfix() {
    const Deeper deeper(depth_);
    Value value = primary();
    for (;;) {
      skip_blanks();
      if (accept("[")) {
        value = subscript(value);
      } else if (accept(".")) {
        const std::string key = name();
        if (!accept("(")) {
          value = member(value, key);
          continue;
        }
        const Arguments arguments = read_arguments();
        value = quiet_ > 0 && !value.is_string() ? Value() : made(method(value, key, arguments));
      } else {
        return value;
      }
    }
  }
  Value member(const Value& value, const std::string& key) {
    was_defined_ = value.is_object() && value.contains(key);
    return was_defined_ ? value.at(key) : Value();
  }
  Value subscript(const Value& value) {
    const bool has_first = !accept(":");
    const Value first = has_first ? conditional() : Value();
    const bool is_slice = !has_first || accept(":");
    if (!is_slice) {
      expect("]");
      if (first.is_string()) return member(value, first.get<std::string>());
      if (!value.is_array() || !first.is_number_integer()) return {};
      std::int64_t index = first.get<std::int64_t>();
      if (index < 0) index += static_cast<std::int64_t>(value.size());
      was_defined_ = index >= 0 && index < static_cast<std::int64_t>(value.size());
      return was_defined_ ? value[static_cast<std::size_t>(index)] : Value();
    }
    Value last, step = 1;
    skip_blanks();
    if (text_.substr(at_, 1) != ":" && text_.substr(at_, 1) != "]") last = conditional();
    if (accept(":") && text_.substr(at_, 1) != "]") step = conditional();
    expect("]");
    return quiet_ > 0 ? Value() : made(sliced(value, first, last, integer(step)));
  }
  Value quoted(char quote) {
    std::string text;
    for (++at_; at_ < text_.size() && text_[at_] != quote; ++at_) {
      char c = text_[at_];
      if (c == '\\' && at_ + 1 < text_.size()) {
        c = text_[++at_];
        if (c == 'n')
          c = '\n';
        else if (c == 't')
          c = '\t';
        else if (c == 'r')
          c = '\r';
        else if (c != '\\' && c != '\'' && c != '"')
          text += '\\';
      }
      text += c;
    }
    if (at_ == text_.size()) refuse("a string without an end");
    ++at_;
    return text;
  }
  Value primary() {
    skip_blanks();
    was_defined_ = true;
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    if (c == '\'' || c == '"') return quoted(c);
    if (std::isdigit(static_cast<unsigned char>(c))) {
      const std::string digits = name();
      if (digits.size() > 15 || digits.find_first_not_of("0123456789") != std::string::npos)
        refuse("number '" + digits + "'");
      return std::stoll(digits);
    }
    if (accept("(")) {
      Value value = conditional();
      expect(")");
      return value;
    }
    if (accept("[")) {
      Value list = Value::array();
      std::size_t size_bytes = 0;
      while (!accept("]")) {
        list.push_back(made(conditional()));
        check_text_size(size_bytes += bounded_size(list.back()));
        accept(",");
      }
      return list;
    }
    if (accept("{")) {
      Value object = Value::object();
      std::size_t size_bytes = 0;
      while (!accept("}")) {
        const std::string key = printed(conditional());
        expect(":");
        Value& item = object[key] = made(conditional());
        check_text_size(size_bytes += key.size() + bounded_size(item));
        accept(",");
      }
      return object;
    }
    const std::string word = name();
    if (word == "true" || word == "True") return true;
    if (word == "false" || word == "False") return false;
    if (word == "none" || word == "None") return nullptr;
    if (accept("(")) return call(word, read_arguments());
    const Value* found = environment_.scopes.find(word);
    was_defined_ = found != nullptr;
    if (found && found->is_structured() && accept_length()) return found->size();
    return found ? made(*found) : Value();
  }
  /// `messages|length` in a loop over messages needs no copy of them.
  bool accept_length() {
    const std::size_t begin = at_;
    if (accept("|") && accept_word("length")) return true;
    at_ = begin;
    return false;
  }
  Value call(const std::string& called, const Arguments& arguments) {
    if (called == "namespace" || called == "dict") {
      Value object = Value::object();
      for (const auto& [key, value] : arguments.named) object[key] = value;
      return made(std::move(object));
    }
    if (quiet_ > 0) return {};
    if (called == "raise_exception") throw Failure("chat template: " + printed(arguments.at(0)));
    if (called == "range") {
      const bool has_begin = arguments.plain.size() > 1;
      const std::int64_t begin = has_begin ? integer(arguments.at(0)) : 0,
                         end = integer(arguments.at(has_begin ? 1 : 0));
      if (calculated(end, '-', begin) > 100000) refuse("a range of more than 100,000");
      Value list = Value::array();
      for (std::int64_t i = begin; i < end; ++i) list.push_back(i);
      return made(std::move(list));
    }
    Value result;
    if (environment_.call_macro && environment_.call_macro(called, arguments.plain, arguments.named, result))
      return result;
    refuse("function '" + called + "'");
  }

  std::string_view text_;
  Environment& environment_;
  std::size_t at_ = 0;
  int quiet_ = 0, depth_ = 0;
  bool was_defined_ = true;  ///< of the name or member read last
};

}  // namespace

Value* Scopes::find(const std::string& name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->find(name); found != scope->end()) return &found->second;
  }
  return nullptr;
}

Value evaluate(std::string_view expression, Environment& environment) {
  return Parser(expression, environment).whole();
}

}  // namespace cairn_cli::jinja

// SPDX-License-Identifier: Apache-2.0
#include "plot.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>
#include <string_view>
#include <vector>

namespace llama {
namespace {

constexpr double kWidth = 1120, kHeight = 500;
constexpr double kTop = 70, kBottom = 430;  // of the panels
constexpr double kLegendX = 975;

struct Point {
  double x, y;
};

struct Series {
  std::string name;
  std::vector<Point> points;
};

// Maps values to pixels, along a linear or a logarithmic scale.
class Axis {
 public:
  Axis(double low, double high, double from, double to, bool logarithmic)
      : low_(low), high_(high), from_(from), to_(to), logarithmic_(logarithmic) {}

  double pixel(double value) const {
    const double share = logarithmic_ ? std::log(value / low_) / std::log(high_ / low_)
                                      : (value - low_) / (high_ - low_);
    return from_ + share * (to_ - from_);
  }

  // Round numbers inside the range: 1, 2 and 5 times powers of ten, or even steps of such a size.
  std::vector<double> ticks() const {
    std::vector<double> ticks;
    if (!std::isfinite(low_) || !std::isfinite(high_)) return ticks;
    if (logarithmic_) {
      for (double power = std::pow(10, std::floor(std::log10(low_))); power <= high_; power *= 10) {
        for (const double factor : {1.0, 2.0, 5.0}) ticks.push_back(power * factor);
      }
    } else {
      const double power = std::pow(10, std::floor(std::log10((high_ - low_) / 5)));
      const double rough = (high_ - low_) / 5 / power;
      const double step = power * (rough < 1.5 ? 1 : rough < 3.5 ? 2 : rough < 7.5 ? 5 : 10);
      for (double i = std::ceil(low_ / step); i * step <= high_; ++i) ticks.push_back(i * step);
    }
    std::erase_if(
        ticks, [&](double tick) { return tick < low_ * (1 - 1e-9) || tick > high_ * (1 + 1e-9); });
    return ticks;
  }

 private:
  double low_, high_, from_, to_;
  bool logarithmic_;
};

struct Panel {
  std::string title, y_label;
  std::vector<Series> series;
  double reference;  // a dashed line across, with its label
  std::string reference_label;
  double left, right;
  double label_x;  // where the reference line's label begins
};

struct Look {
  const char* color;
  const char* marker;  // a path around the origin
};

// Colours that stay apart for the colour-blind, each with a shape of its own.
constexpr std::array<Look, 10> kLooks = {{
    {"#000000", "M-6 0L0-6L6 0L0 6Z"},
    {"#0072b2", "M-4.5-4.5H4.5V4.5H-4.5Z"},
    {"#d55e00", "M0-6L5.5 4H-5.5Z"},
    {"#009e73", "M0 6L5.5-4H-5.5Z"},
    {"#cc79a7", "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0-5 0Z"},
    {"#e69f00", "M-6 0L0-6L6 0L0 6Z"},
    {"#56b4e9", "M-5 0A5 5 0 1 0 5 0A5 5 0 1 0-5 0Z"},
    {"#8c564b", "M-4.5-4.5H4.5V4.5H-4.5Z"},
    {"#7a3fb5", "M0-6L5.5 4H-5.5Z"},
    {"#7f7f7f", "M0 6L5.5-4H-5.5Z"},
}};

std::string number(double value) {
  std::ostringstream text;
  text.precision(4);
  text << value;
  return text.str();
}

void text(std::ostream& svg, double x, double y, const std::string& content,
          std::string_view attributes = "") {
  svg << "<text x=\"" << x << "\" y=\"" << y << "\" " << attributes << ">" << content
      << "</text>\n";
}

void line(std::ostream& svg, Point from, Point to, std::string_view attributes) {
  svg << "<line x1=\"" << from.x << "\" y1=\"" << from.y << "\" x2=\"" << to.x << "\" y2=\"" << to.y
      << "\" " << attributes << "/>\n";
}

void marker(std::ostream& svg, Point at, const Look& look) {
  svg << "<path d=\"" << look.marker << "\" transform=\"translate(" << at.x << " " << at.y
      << ")\" fill=\"" << look.color << "\" stroke=\"#fff\"/>\n";
}

// The smallest and the largest of one coordinate, over all series and `also`.
template <class Coordinate>
std::pair<double, double> range(const Panel& panel, double also, Coordinate coordinate) {
  double low = also, high = also;
  for (const Series& series : panel.series) {
    for (const Point& point : series.points) {
      low = std::min(low, coordinate(point));
      high = std::max(high, coordinate(point));
    }
  }
  return {low, high};
}

Axis x_axis(const Panel& panel) {
  const double first = panel.series.front().points.front().x;
  const auto [low, high] = range(panel, first, [](const Point& p) { return p.x; });
  return {low / 1.25, high * 1.25, panel.left, panel.right, true};
}

Axis y_axis(const Panel& panel) {
  const auto [low, high] = range(panel, panel.reference, [](const Point& p) { return p.y; });
  if (high / low > 3) return {low / 1.1, high * 1.15, kBottom, kTop, true};
  const double margin = std::max(0.05 * (high - low), 1e-3);
  return {low - margin, high + margin, kBottom, kTop, false};
}

void draw_axes(std::ostream& svg, const Panel& panel, const Axis& x, const Axis& y) {
  for (const double tick : y.ticks()) {
    const double at = y.pixel(tick);
    line(svg, {panel.left, at}, {panel.right, at}, "stroke=\"#e3e3e3\"");
    text(svg, panel.left - 8, at + 4, number(tick), "text-anchor=\"end\"");
  }
  for (const double tick : x.ticks()) {
    const double at = x.pixel(tick);
    line(svg, {at, kTop}, {at, kBottom}, "stroke=\"#e3e3e3\"");
    text(svg, at, kBottom + 18, number(tick), "text-anchor=\"middle\"");
  }
  svg << "<rect x=\"" << panel.left << "\" y=\"" << kTop << "\" width=\""
      << panel.right - panel.left << "\" height=\"" << kBottom - kTop
      << "\" fill=\"none\" stroke=\"#555\"/>\n";
  const double middle = (panel.left + panel.right) / 2;
  text(svg, middle, kTop - 14, panel.title, "text-anchor=\"middle\" font-weight=\"bold\"");
  text(svg, middle, kBottom + 42, "KV cache, all layers (MiB, logarithmic)",
       "text-anchor=\"middle\"");
  const std::string center = number((kTop + kBottom) / 2), x_label = number(panel.left - 52);
  text(svg, panel.left - 52, (kTop + kBottom) / 2, panel.y_label,
       "text-anchor=\"middle\" transform=\"rotate(-90 " + x_label + " " + center + ")\"");
}

void draw_panel(std::ostream& svg, const Panel& panel) {
  const Axis x = x_axis(panel), y = y_axis(panel);
  draw_axes(svg, panel, x, y);
  const double reference = y.pixel(panel.reference);
  line(svg, {panel.left, reference}, {panel.right, reference},
       "stroke=\"#555\" stroke-dasharray=\"5 4\"");
  for (std::size_t i = 0; i < panel.series.size(); ++i) {
    const Look& look = kLooks[i % kLooks.size()];
    svg << "<polyline fill=\"none\" stroke-width=\"1.8\" stroke=\"" << look.color << "\" points=\"";
    for (const Point& p : panel.series[i].points) svg << x.pixel(p.x) << "," << y.pixel(p.y) << " ";
    svg << "\"/>\n";
  }
  for (std::size_t i = 0; i < panel.series.size(); ++i) {
    for (const Point& p : panel.series[i].points) {
      marker(svg, {x.pixel(p.x), y.pixel(p.y)}, kLooks[i % kLooks.size()]);
    }
  }
  text(svg, panel.label_x, reference - 6, panel.reference_label,
       "stroke=\"#fff\" stroke-width=\"4\" paint-order=\"stroke\"");
}

void add_point(std::vector<Series>& series, const std::string& name, Point point) {
  if (series.empty() || series.back().name != name) series.push_back({name, {}});
  series.back().points.push_back(point);
}

}  // namespace

std::string draw_svg(const Comparison& comparison) {
  Panel prose{"Perplexity of prose (lower is better)",
              "perplexity / that of the full cache",
              {},
              1,
              "full cache",
              80,
              470,
              88};
  Panel recall{"Recall of a repeated passage (lower is better)",
               "perplexity of the second copy",
               {},
               std::exp(comparison.rows.front().recall.first_copy_nll),
               "as if never seen",
               560,
               950,
               840};
  for (const CompareRow& row : comparison.rows) {
    constexpr double kMiB = 1024.0 * 1024.0;
    const std::string& name = row.prose_request.policy;
    add_point(prose.series, name,
              {static_cast<double>(row.prose.cache.bytes) / kMiB, row.perplexity_ratio});
    add_point(recall.series, name,
              {static_cast<double>(row.recall.cache.bytes) / kMiB, row.recall.perplexity()});
  }
  const CompareOptions& options = comparison.options;
  std::ostringstream svg;
  svg << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << kWidth << " " << kHeight
      << "\" width=\"" << kWidth << "\" height=\"" << kHeight
      << "\" font-family=\"Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#222\">\n"
      << "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n";
  text(svg, kWidth / 2, 26,
       "What each policy costs and saves: " + std::to_string(options.context) +
           " tokens of prose, a passage of " + std::to_string(options.recall_length) +
           " tokens to recall",
       "text-anchor=\"middle\" font-size=\"15\" font-weight=\"bold\"");
  draw_panel(svg, prose);
  draw_panel(svg, recall);
  for (std::size_t i = 0; i < prose.series.size(); ++i) {
    const double y = kTop + 14 + 22 * static_cast<double>(i);
    const Look& look = kLooks[i % kLooks.size()];
    line(svg, {kLegendX, y}, {kLegendX + 24, y},
         std::string("stroke-width=\"1.8\" stroke=\"") + look.color + "\"");
    marker(svg, {kLegendX + 12, y}, look);
    text(svg, kLegendX + 32, y + 4, prose.series[i].name);
  }
  svg << "</svg>\n";
  return svg.str();
}

}  // namespace llama

# Stands for Homebrew in scripts/homebrew-nix-test: as much of it as karve.rb uses.
#
#	ruby formula.rb RELEASE PREFIX OS ARCH
#
# It reads RELEASE/karve.rb as each platform would, and compares what that would download with the files in RELEASE.
# Then it installs the program of OS (linux or macos) and ARCH (intel or arm) to PREFIX, and runs the test of the formula.

require "digest"
require "fileutils"
require "pathname"
require "tmpdir"
require "uri"

RELEASE, PREFIX = ARGV.shift(2).map { |path| File.expand_path(path) }
OS_HERE, ARCH_HERE = ARGV
SUMS = File.readlines("#{RELEASE}/SHA256SUMS", chomp: true).to_h { |line| line.split("  ", 2).reverse }

# A file that Homebrew downloads.
class Download
  def url(value) = @url = value
  def sha256(value) = @sha256 = value

  # The file in the release, which Homebrew would take if it has this name and checksum.
  def fetch(version)
    abort "a platform or a resource has no url or no sha256" unless @url && @sha256
    base = "https://github.com/karve-k8s/karve/releases/download/v#{version.gsub("+", "%2B")}/"
    abort "#{@url} does not begin with #{base}" unless @url.start_with?(base)
    name = @url.delete_prefix(base)
    abort "the release has no #{name}" unless SUMS.key?(name) && File.file?("#{RELEASE}/#{name}")
    actual = Digest::SHA256.file("#{RELEASE}/#{name}").hexdigest
    abort "#{name} has the checksum #{actual}, not #{@sha256}" unless [@sha256, SUMS[name]].all?(actual)
    "#{RELEASE}/#{name}"
  end

  def unpack(version, dir)
    file = fetch(version)
    if file.end_with?(".tar.gz")
      system("tar", "-xzf", file, "-C", dir, exception: true)
    else
      system("gzip", "-dc", file, out: "#{dir}/#{File.basename(file, ".gz")}", exception: true)
    end
    # Homebrew enters a directory that is alone.
    Dir.children(dir).then { |all| all.length == 1 && File.directory?("#{dir}/#{all[0]}") ? "#{dir}/#{all[0]}" : dir }
  end
end

class Pathname
  def install(*sources)
    mkpath
    sources.flatten.each do |source|
      from, to = source.is_a?(Hash) ? source.first : [source, File.basename(source)]
      raise "#{from}: no such file" unless File.exist?(from)

      FileUtils.mv from, self/to
    end
  end
end

# What the block service may say.
class Service
  def opt_bin = Pathname(PREFIX)/"bin"
  def var = Pathname(PREFIX)/"var"
  def run(command) = (abort "the service does not run the program" unless File.executable?(command[0]))
  def keep_alive(_) = nil
  def log_path(_) = nil
  def error_log_path(_) = nil
end

class Formula
  include FileUtils

  class << self
    attr_accessor :os, :arch
    attr_reader :subject, :downloads, :service_block, :test_block

    def inherited(formula)
      super
      formula.instance_variable_set(:@downloads, { nil => Download.new })
      Formula.instance_variable_set(:@subject, formula)
    end

    %w[desc homepage license].each { |name| define_method(name) { |value| abort "#{name} is empty" if value.empty? } }
    def version(value = @version) = @version = value
    def on_macos = (yield if Formula.os == "macos")
    def on_linux = (yield if Formula.os == "linux")
    def on_intel = (yield if Formula.arch == "intel")
    def on_arm = (yield if Formula.arch == "arm")
    def url(value) = downloads[nil].url(value)
    def sha256(value) = downloads[nil].sha256(value)
    def resource(name, &block) = (downloads[name] = Download.new).instance_eval(&block)
    def service(&block) = @service_block = block
    def test(&block) = @test_block = block
  end

  def version = self.class.version
  def prefix = Pathname(PREFIX)
  def bin = prefix/"bin"
  def opt_bin = bin
  def var = prefix/"var"
  def man1 = prefix/"share/man/man1"
  def bash_completion = prefix/"etc/bash_completion.d"
  def fish_completion = prefix/"share/fish/vendor_completions.d"
  def zsh_completion = prefix/"share/zsh/site-functions"

  # A download, which the caller unpacks and enters.
  def staged(name)
    Dir.mktmpdir do |dir|
      Dir.chdir(self.class.downloads.fetch(name).unpack(version, dir)) { yield }
    end
  end

  def resource(name)
    Struct.new(:formula, :name) { def stage(&block) = formula.staged(name, &block) }.new(self, name)
  end

  def shell_output(command)
    output = `#{command}`
    abort "#{command}: #{$?}" unless $?.success?
    output
  end

  def assert_match(expected, actual) = (abort "#{actual.inspect} does not contain #{expected}" unless actual.include?(expected))
end

# The formula as a platform reads it.
def formula(os, arch)
  Formula.os, Formula.arch = os, arch
  Object.send(:remove_const, :Karve) if defined?(Karve)
  load "#{RELEASE}/karve.rb"
  Formula.subject
end

{ "macos" => "darwin", "linux" => "linux" }.each do |os, release_os|
  { "intel" => "amd64", "arm" => "arm64" }.each do |arch, release_arch|
    f = formula(os, arch)
    name = File.basename(f.downloads[nil].fetch(f.version))
    abort "#{os} on #{arch} downloads #{name}" unless name == "karve-#{release_os}-#{release_arch}.gz"
    f.downloads.each_value { |download| download.fetch(f.version) }
  end
end

here = formula(OS_HERE, ARCH_HERE).new
here.staged(nil) { here.install }
Service.new.instance_eval(&Karve.service_block)
Dir.mktmpdir do |home|
  ENV["HOME"] = home
  Dir.chdir(home) { here.instance_eval(&Karve.test_block) }
end
